"""`python -m tests.fuzz [--seconds N] [NAME…]`: each target for so long, guided by coverage; `make fuzz` runs them all.

Every target runs in a process of its own. An input that crashes, hangs, or takes more memory than it may is left under
`tests/fuzz/seeds`, where the ordinary tests run it from then on.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TOO_LONG = 25
TOO_MUCH_MIB = 2048


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named targets (none: all); 1 when one of them found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these targets (default: all)")
    parser.add_argument("--seconds", type=int, default=600, metavar="N", help="for each target (default: 600)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.here:
        return fuzz(arguments.names[0], arguments.seconds)
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415 - where it fuzzes, it is imported to be instrumented

    names = arguments.names or list(TARGETS)
    if unknown := sorted(set(names) - set(TARGETS)):
        parser.error(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    found = []
    for name in names:
        print(f"{name}: {arguments.seconds} s", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", "--here", "--seconds", str(arguments.seconds), name]
        if subprocess.run(command, check=False).returncode != 0:
            found.append(name)
    print(f"found something: {', '.join(found)}" if found else "nothing found")
    return 1 if found else 0


def fuzz(name: str, seconds: int) -> int:
    """Fuzz one target in this process; returns only when it cannot start, since the fuzzer ends the process."""
    try:
        import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore] # noqa: PLC0415 - few platforms
    except ImportError:
        print("fuzzing needs atheris, which ships for Linux on x86-64 only")
        return 1
    with atheris.instrument_imports(include=["tidegate_server", "tidegate_collectors"]):
        from tests.fuzz.targets import SEEDS, TARGETS  # noqa: PLC0415
    target = TARGETS[name]
    kept = SEEDS / name
    kept.mkdir(parents=True, exist_ok=True)
    corpus = Path(tempfile.mkdtemp(prefix=f"tidegate-fuzz-{name}-"))
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number:05}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}", f"-timeout={TOO_LONG}", f"-rss_limit_mb={TOO_MUCH_MIB}",
        f"-artifact_prefix={kept}/", "-max_len=16384", "-print_final_stats=1", "-verbosity=0",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, str(corpus)], target.run)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
