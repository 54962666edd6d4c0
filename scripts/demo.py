"""`make run`: a server, a stand-in engine, stand-in accounts, and the shipped collectors that read them.

Everything runs on loopback and ends with this program. The server keeps its state in ./state, where this is started.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from tidegate import Client, TidegateError

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
EXAMPLES = ROOT / "docs" / "examples"
ENGINE_PORT, ACCOUNTS_PORT = 18000, 18001
ADDRESS = "127.0.0.1:50051"
TOKEN = Path("state") / "local.token"
READY_WITHIN = 60.0
PROVIDERS = {"qwen", "claude-primary", "codex", "openrouter"}
PR_SET_PDEATHSIG = 1
DRAIN_SECONDS = 15
"""The grace that a server gives to calls that run when it drains."""

TIDEGATE = str(BIN / "tidegate")
COMMANDS = {
    "server": [TIDEGATE, "serve", "--config", str(EXAMPLES / "tidegate.yaml"), "--log-level", "warning"],
    "engine": [sys.executable, str(ROOT / "scripts" / "standins.py"), "engine", "--port", str(ENGINE_PORT)],
    "accounts": [sys.executable, str(ROOT / "scripts" / "standins.py"), "accounts", "--port", str(ACCOUNTS_PORT)],
    "collectors": [TIDEGATE, "collect", "--config", str(EXAMPLES / "collectors.yaml")],
}

HOW_TO_CALL = """
Call it:
  .venv/bin/tidegate admit managed/routine my-thread --request-bytes 1200 --explain
  .venv/bin/tidegate capacity --model managed/routine
  README.md has the same call from Python, Node and any gRPC client.
Look: http://127.0.0.1:9464/ shows where a new worker would go and why, capacity, decisions and flows.
See it refuse: stop the engine (kill {engine}), wait 15 s, and ask for a new worker on managed/local.
Ctrl-C ends everything; the pins stay in ./state.
"""


def start(name: str) -> "subprocess.Popen[bytes]":
    """Start one of the programs; it ends when this one does, however this one ends."""
    environment = {**os.environ, "STAND_IN_TOKEN": "stand-in"}
    return subprocess.Popen(COMMANDS[name], env=environment, preexec_fn=_end_with_parent)  # noqa: PLW1509


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def first_decision() -> str:
    """Wait until the collectors have told of every provider, then ask for a new worker; one line of what came."""
    deadline = time.monotonic() + READY_WITHIN
    told: set[str] = set()
    with Client(ADDRESS, token_file=TOKEN) as client:
        while told < PROVIDERS and time.monotonic() < deadline:
            time.sleep(0.1)
            try:
                told = {fact.observation.provider for fact in client.capacity().facts}
            except TidegateError:
                continue
        worker = f"make-run-{os.getpid()}"
        admission = client.admit("managed/routine", worker, request_bytes=1200)
    if admission.may_forward and admission.binding is not None:
        return f"ADMITTED, the worker {worker} is bound to {admission.binding.candidate}"
    return f"REFUSED: {admission.message}"


def taken_ports() -> list[int]:
    """The ports that this needs and somebody else has: what answers there is not what we start.

    What a killed run left may still drain, so the ports get the time of a drain to come free.
    """
    deadline = time.monotonic() + DRAIN_SECONDS
    while (taken := _listening()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return taken


def _listening() -> list[int]:
    taken = []
    for port in (int(ADDRESS.rpartition(":")[2]), ENGINE_PORT, ACCOUNTS_PORT):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                taken.append(port)
    return taken


def wait_until_serving(server: "subprocess.Popen[bytes]") -> bool:
    """Whether the server came up."""
    with Client(ADDRESS, token_file=TOKEN) as client:
        while server.poll() is None:
            if TOKEN.exists() and client.serving():
                return True
            time.sleep(0.05)
    return False


def stop(programs: "dict[str, subprocess.Popen[bytes]]") -> None:
    """End what still runs, the server last, so that it drains."""
    for name in reversed(programs):
        programs[name].terminate()
    for program in programs.values():
        try:
            program.wait(timeout=20)
        except subprocess.TimeoutExpired:
            program.kill()


def main() -> int:
    """Run until Ctrl-C, SIGTERM, or the server's end."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts background jobs with SIGINT ignored
        signal.signal(number, _interrupt)
    if taken := taken_ports():
        ports = ", ".join(map(str, taken))
        print(
            f"127.0.0.1: something listens on {ports} already; is another `make run` on? Stop it first.",
            file=sys.stderr,
        )
        return 1
    programs = {"server": start("server")}
    try:
        if not wait_until_serving(programs["server"]):
            return programs["server"].returncode or 1
        print(f"Tidegate serves on {ADDRESS} with docs/examples/tidegate.yaml")
        for name in ("engine", "accounts", "collectors"):
            programs[name] = start(name)
        print(f"stand-in engine on 127.0.0.1:{ENGINE_PORT} (process {programs['engine'].pid})")
        print(f"stand-in accounts on 127.0.0.1:{ACCOUNTS_PORT} (process {programs['accounts'].pid})")
        print(f"collectors read them with docs/examples/collectors.yaml (process {programs['collectors'].pid})")
        print(f"managed/routine: {first_decision()}")
        print(HOW_TO_CALL.format(engine=programs["engine"].pid), flush=True)
        return watch(programs)
    except KeyboardInterrupt:
        return 0
    finally:
        stop(programs)


def watch(programs: "dict[str, subprocess.Popen[bytes]]") -> int:
    """Say who has stopped; return when it is the server."""
    told = set()
    while programs["server"].poll() is None:
        for name, program in programs.items():
            if name not in told and program.poll() is not None:
                told.add(name)
                print(f"the {name} stopped ({program.returncode}); the facts run out, and nothing else", flush=True)
        time.sleep(0.2)
    print(f"the server stopped ({programs['server'].returncode})", file=sys.stderr)
    return programs["server"].returncode or 0


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
