"""Generate the Go and TypeScript messages from proto/: `python -m scripts.generate_clients`.

`--check` changes nothing and exits 1 when they are out of date. Needs `go` and `npm` on the PATH. The generators are
pinned where each language pins its tools, `clients/go/tools/go.mod` and `clients/node/package-lock.json`; protoc comes
from this project's own environment.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from scripts.generate import PROTO, ROOT, files

GO = ROOT / "clients/go"
NODE = ROOT / "clients/node"
GO_PACKAGE = "github.com/tidegate/tidegate/clients/go/gen/tidegate/v1;tidegatev1"
DETAILS = ("google/rpc/error_details.proto", "google/rpc/status.proto")
SITE_PACKAGES = sysconfig.get_path("purelib")
PROTOS = sorted(str(path.relative_to(PROTO)) for path in PROTO.glob("tidegate/v1/*.proto"))


def write_go(target: Path) -> None:
    """Write the Go messages and services to the folder `target`."""
    with tempfile.TemporaryDirectory(prefix="tidegate-go-tools-") as tools:
        subprocess.run(["go", "build", "-o", tools, "tool"], cwd=GO / "tools", check=True)
        # The .proto files belong to no language, so the package is named here and not in them.
        where = [f"--{kind}_opt=M{name}={GO_PACKAGE}" for kind in ("go", "go-grpc") for name in PROTOS]
        module = [f"--{kind}_opt=module=github.com/tidegate/tidegate/clients/go/gen" for kind in ("go", "go-grpc")]
        _protoc(tools, *where, *module, f"--go_out={target}", f"--go-grpc_out={target}")


def write_node(target: Path) -> None:
    """Write the TypeScript messages and services to the folder `target`."""
    plugins = NODE / "node_modules/.bin"
    if not (plugins / "protoc-gen-es").exists():
        subprocess.run(["npm", "ci", "--no-progress"], cwd=NODE, check=True)
    # What the details of a status hold has no package of its own for this runtime.
    _protoc(str(plugins), "--es_opt=target=ts,import_extension=js", f"--es_out={target}", *DETAILS)


def _protoc(plugins: str, *arguments: str) -> None:
    environment = {**os.environ, "PATH": os.pathsep.join((plugins, os.environ["PATH"]))}
    paths = [f"--proto_path={path}" for path in (PROTO, SITE_PACKAGES)]
    command = [sys.executable, "-m", "grpc_tools.protoc", *paths, *arguments, *PROTOS]
    subprocess.run(command, env=environment, check=True)


GENERATED = {GO / "gen": write_go, NODE / "gen": write_node}


def main() -> None:
    """Generate, or check."""
    parser = argparse.ArgumentParser(description="Generate the Go and TypeScript messages.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a file is out of date")
    check = parser.parse_args().check
    stale: list[str] = []
    for target, producer in GENERATED.items():
        with tempfile.TemporaryDirectory(prefix="tidegate-generate-") as folder:
            producer(Path(folder))
            made, kept = files(Path(folder)), files(target) if target.exists() else {}
            changed = [name for name in sorted(made.keys() | kept.keys()) if made.get(name) != kept.get(name)]
            stale += [str((target / name).relative_to(ROOT)) for name in changed]
            if not check:
                _write(target, made, kept)
    if check and stale:
        sys.exit(
            "\n".join(["out of date; run `python -m scripts.generate_clients`:", *(f"  {name}" for name in stale)])
        )
    print(*stale, sep="\n", end="\n" if stale else "")


def _write(target: Path, made: dict[str, bytes], kept: dict[str, bytes]) -> None:
    for name in kept.keys() - made.keys():
        (target / name).unlink()
    for name, text in made.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(text)


if __name__ == "__main__":
    main()
