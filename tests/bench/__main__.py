"""`python -m tests.bench`: every benchmark of this folder, or the named ones. Each prints a ratio beside a baseline."""

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def modules() -> dict[str, str]:
    """The benchmarks by name: the modules of this folder that define `main`, with the first line of their docstring."""
    found = {}
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        path = Path(__file__).parent / f"{module.name}.py"
        if module.name.startswith("_") or not path.exists():
            continue
        source = path.read_text()
        if "\ndef main(" in source:
            found[module.name] = source.lstrip('"').split("\n", 1)[0].rstrip('"')
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run them one after the other; exit 1 when one of them says that it missed its aim."""
    known = modules()
    listing = "\n".join(f"  {name}: {about}" for name, about in known.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=f"benchmarks:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these (default: all)")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    arguments = parser.parse_args(argv)
    if arguments.list:
        print(listing)
        return 0
    unknown = sorted(set(arguments.names) - set(known))
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    missed = []
    for name in arguments.names or known:
        print(f"== {name}: {known[name]}", flush=True)
        run: Callable[[], int | None] = importlib.import_module(f"tests.bench.{name}").main
        if run():
            missed.append(name)
        print()
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
