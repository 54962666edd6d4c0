"""Generate every file that is made from another one. `--check` changes nothing and exits 1 when a file is out of date.

Each entry of `GENERATED` names a committed file or folder and the function that writes it. Everything is made in a
temporary folder first, and replaces the old only when all of it is there: a generator that fails leaves no half of it.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tidegate_server.config import json_schema_text, reference

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
STUBS_DOCSTRING = '"""The messages and services of `tidegate.v1`, generated from proto/tidegate/v1. Never edited."""\n'

REASONS = """# Reasons

Generated from the `.proto` files by `make proto`. Two kinds of "no": a **refusal** is an answer by policy (gRPC status
OK, `verdict` REFUSED, a `Refusal` with one of the first list); an **error** means that no decision was possible (a gRPC
status with one `ErrorInfo`, domain `tidegate`, and one of the second list). In both cases: do not forward.
"""
VALUE = re.compile(r"((?:^ *//.*\n)+)^ *([A-Z0-9_]+) = (\d+);", re.MULTILINE)
"""A value of an enum behind its comment."""

Producer = Callable[[Path], None]


def write_stubs(target: Path) -> None:
    """Write the Python messages and services, with their types, to the folder `target`.

    Files without a service get no `_pb2_grpc` module.
    """
    protos = sorted(PROTO.glob("tidegate/v1/*.proto"))
    with_service = [proto for proto in protos if re.search(r"^service ", proto.read_text(), re.MULTILINE)]
    out = target.parent / f"{target.name}.protoc"
    out.mkdir()
    _protoc(protos, out, "python", "mypy")
    _protoc(with_service, out, "grpc_python", "mypy_grpc")
    (out / "tidegate/v1").replace(target)
    (target / "__init__.py").write_text(STUBS_DOCSTRING)
    shutil.rmtree(out)


def _protoc(protos: list[Path], out: Path, *generators: str) -> None:
    """Run protoc and its plugins of this environment."""
    plugins = Path(sys.prefix) / "bin"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTO}"]
    for generator in generators:
        if generator.startswith("mypy"):
            command += [f"--plugin={plugins / f'protoc-gen-{generator}'}", f"--{generator}_opt=quiet"]
        command.append(f"--{generator}_out={out}")
    subprocess.run([*command, *map(str, protos)], check=True)


def write_configuration_schema(target: Path) -> None:
    """Write the JSON Schema of the configuration file."""
    target.write_text(json_schema_text())


def write_configuration_reference(target: Path) -> None:
    """Write the reference of the configuration file."""
    target.write_text(reference())


def write_reasons(target: Path) -> None:
    """Write the page of reasons: the documentation of two enums, as the .proto files have it."""
    refusals = [
        f"### {name}\n\nCode `{name.lower()}`.\n\n{text}\n"
        for name, text in documented_values("types.proto", "RefusalReason", "REFUSAL_REASON_")
    ]
    errors = [
        f"### {name}\n\n{text}\n"
        for name, text in documented_values("error_reason.proto", "ErrorReason", "ERROR_REASON_")
    ]
    target.write_text("\n".join([REASONS, "## Refusals\n", *refusals, "## Errors\n", *errors]))


def documented_values(file: str, enum: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the name without its prefix and the comment as Markdown of each value, but for the unspecified one."""
    source = (PROTO / "tidegate/v1" / file).read_text()
    body = source[source.index(f"enum {enum} {{") :].split("\n}\n", 1)[0]
    for comment, name, number in VALUE.findall(body):
        if int(number):
            lines = (line.strip().removeprefix("//").removeprefix(" ") for line in comment.splitlines())
            yield name.removeprefix(prefix), "\n".join(lines).strip()


GENERATED: Mapping[str, Producer] = {
    "clients/python/tidegate/v1": write_stubs,
    "docs/configuration-reference.md": write_configuration_reference,
    "docs/configuration.schema.json": write_configuration_schema,
    "docs/reasons.md": write_reasons,
}


def produce(staging: Path) -> None:
    """Write everything that is generated below `staging`, at the paths that it has below the root."""
    for path, producer in GENERATED.items():
        target = staging / path
        target.parent.mkdir(parents=True, exist_ok=True)
        producer(target)


def files(path: Path) -> dict[str, bytes]:
    """Return the files of a folder (or the one file) by relative name, compiled Python left out."""
    if path.is_file():
        return {"": path.read_bytes()}
    found = (file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return {str(file.relative_to(path)): file.read_bytes() for file in found}


def differences(staging: Path, root: Path) -> list[str]:
    """Name, relative to the root, each generated file that is missing, different or there without being generated."""
    names = []
    for path in GENERATED:
        made, kept = files(staging / path), files(root / path)
        names += [str(Path(path, name)) for name in made.keys() | kept.keys() if made.get(name) != kept.get(name)]
    return sorted(names)


def replace(staging: Path, root: Path) -> None:
    """Put what was generated in the place of what was there."""
    for path in GENERATED:
        target = root / path
        if target.is_dir():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(staging / path, target)


def main() -> None:
    """Generate, or check."""
    parser = argparse.ArgumentParser(description="Generate every file that is made from another one.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a file is out of date")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-generate-") as folder:
        staging = Path(folder)
        produce(staging)
        changed = differences(staging, ROOT)
        if arguments.check and changed:
            sys.exit("\n".join(["out of date; run `make proto`:", *(f"  {name}" for name in changed)]))
        if changed:
            replace(staging, ROOT)
            print(*changed, sep="\n")


if __name__ == "__main__":
    main()
