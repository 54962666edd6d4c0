"""The clients under test: how each is built, and its runner, which is spoken to in lines of JSON (README.md)."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build/gateways"
"""Where what is compiled goes."""
GO, NODE = ROOT / "clients/go", ROOT / "clients/node"

NONE: Mapping[str, str] = MappingProxyType({})
ANSWER_SECONDS = 60.0
BUILD_SECONDS = 900.0

Json = dict[str, Any]


class Kind(NamedTuple):
    """A client."""

    name: str
    command: Callable[[], Sequence[str]]
    """Builds the runner where that is needed, and says how to start it."""
    coalesces: bool = False
    """Its admissions ride in AdmitBatch (README.md)."""

    def __str__(self) -> str:
        return self.name


class Runner:
    """A runner's process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, op: str, **arguments: Any) -> Json:
        """Carry out one operation."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
        line = await asyncio.wait_for(stdout.readline(), ANSWER_SECONDS)
        assert line, f"the runner ended at {op}"
        said: Json = json.loads(line)
        for where in (said, said.get("http") or {}):
            if "headers" in where:
                where["headers"] = lower(where["headers"])
        return said


def lower(pairs: Sequence[Sequence[str]]) -> dict[str, str]:
    """Headers by name in lower case; that a name stands there once is part of what is tested."""
    names = [name.lower() for name, _ in pairs]
    assert len(names) == len(set(names)), f"a header stands there twice: {pairs}"
    return {name.lower(): value for name, value in pairs}


@asynccontextmanager
async def started(
    kind: Kind, server: str, directory: Path, token: Path | None = None, *, variables: Mapping[str, str] = NONE
) -> AsyncIterator[Runner]:
    """Start the runner of a client for this server; end it afterwards."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    environment = {**inherited, "TIDEGATE_SERVER": server, **variables}
    if kind.coalesces:
        environment["TIDEGATE_COALESCE"] = "1"
    if token is not None:
        environment["TIDEGATE_TOKEN_FILE"] = str(token)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *kind.command(), stdin=pipe, stdout=pipe, env=environment, cwd=directory, limit=1 << 26
    )
    try:
        yield Runner(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()


def _python() -> Sequence[str]:
    return [sys.executable, str(ROOT / "tests/conformance/python_client.py")]


def _go() -> Sequence[str]:
    return [str(go_binary(GO, "./internal/conformance", "conformance-go"))]


def _node() -> Sequence[str]:
    return ["node", str(node_package() / "dist/conformance/main.js")]


PYTHON, GO_CLIENT, NODE_CLIENT = Kind("python", _python), Kind("go", _go), Kind("node", _node)
KINDS = (PYTHON, GO_CLIENT, NODE_CLIENT)
COALESCING = tuple(Kind(f"{kind.name}-coalescing", kind.command, coalesces=True) for kind in KINDS)


@cache
def go_binary(module: Path, package: str, name: str) -> Path:
    """Build one Go program; Go's own cache makes a second time cheap."""
    needs("go", "the Go toolchain (1.26 or newer)")
    target = BUILD / name
    _run(["go", "build", "-o", str(target), package], module)
    return target


@cache
def node_package() -> Path:
    """Install what the lock file names, where that has not been done for it, and compile the TypeScript."""
    needs("npm", "Node.js 20 or newer with npm")
    lock, done = NODE / "package-lock.json", NODE / "node_modules/.installed"
    if not done.exists() or done.read_bytes() != lock.read_bytes():
        _run(["npm", "ci", "--no-progress"], NODE)
        done.write_bytes(lock.read_bytes())
    _run(["npm", "run", "--silent", "build"], NODE)
    return NODE


def needs(command: str, what: str) -> None:
    """Skip the test where the machine lacks a tool."""
    if shutil.which(command) is None:
        pytest.skip(f"needs {what}")


def _run(command: Sequence[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}"
