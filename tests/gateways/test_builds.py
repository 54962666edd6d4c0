"""The clients by their own languages' tools: formatted, checked, tested, and generated from the protocol as it is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.clients import BUILD_SECONDS, GO, NODE, ROOT, needs, node_package

GO_MODULES = (GO, GO / "tools", ROOT / "tests/gateways/tools")


def run(command: list[str], directory: Path = ROOT) -> str:
    """Run a tool; what it said, where it found nothing wrong."""
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_go() -> None:
    needs("go", "the Go toolchain (1.26 or newer)")
    assert not run(["gofmt", "-l", "."], GO)
    run(["go", "vet", "./..."], GO)
    run(["go", "test", "./..."], GO)


def test_node() -> None:
    run(["npm", "test", "--silent"], node_package())


def test_the_generated_code_is_that_of_the_protocol() -> None:
    needs("go", "the Go toolchain (1.26 or newer)")
    node_package()
    run([sys.executable, "-m", "scripts.generate_clients", "--check"])


@pytest.mark.parametrize("module", GO_MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_go_modules_are_tidy(module: Path) -> None:
    needs("go", "the Go toolchain (1.26 or newer)")
    run(["go", "mod", "verify"], module)
    run(["go", "mod", "tidy", "-diff"], module)


def test_locks_name_versions_and_no_places() -> None:
    lock = (NODE / "package-lock.json").read_text()
    assert "://" not in lock, "npm run lock"
    package, locked = json.loads((NODE / "package.json").read_text()), json.loads(lock)["packages"]
    for kind in ("dependencies", "devDependencies"):
        for name, version in package[kind].items():
            assert locked[f"node_modules/{name}"]["version"] == version, "versions are pinned exactly"
    assert all("integrity" in entry for path, entry in locked.items() if path)
