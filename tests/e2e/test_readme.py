"""`make run` does what the README says, and each snippet of the README works as written."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidegate import Client

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()
ADDRESS = "127.0.0.1:50051"
NODE_PACKAGES = ("@grpc/grpc-js@1.14", "@grpc/proto-loader@0.8")
FACTS_AND_WAIT = 15 + 2.5
"""Seconds after which a stopped engine's facts are stale, and the longest cold wait."""


def snippet(language: str, having: str) -> str:
    """The code block of the README that has these words."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (found,) = [block for block in blocks if having in block]
    return str(found)


class Demo:
    """A running `make run`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "run.log"
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self.log.open("wb") as log:
            command = [sys.executable, str(ROOT / "scripts" / "demo.py")]
            process = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log)
        deadline = time.monotonic() + 110
        while "Ctrl-C" not in self.log.read_text():
            assert process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)
        return process

    def restart(self) -> None:
        """Kill everything as a crash would, and start again."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        deadline = time.monotonic() + 30
        while _answers():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        self.process = self._start()

    def stop(self) -> int:
        """End it as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=30)

    def run(self, *command: str | Path, **environment: str) -> str:
        """The output of a command that works."""
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "TIDEGATE_TOKEN_FILE": str(self.directory / "state" / "local.token"), **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def _answers() -> bool:
    with Client(ADDRESS, timeout=2) as client:
        return client.serving()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    assert not _answers(), f"something serves on {ADDRESS} already; stop it first"
    running = Demo(tmp_path_factory.mktemp("demo"))
    yield running
    assert running.stop() == 0


@pytest.mark.timeout(180)
def test_it_serves_and_prints_one_admitted_decision(demo: Demo) -> None:
    assert "ADMITTED" in demo.log.read_text()
    assert _answers()


def test_the_commands_of_the_readme(demo: Demo) -> None:
    for line in snippet("sh", "tidegate admit").splitlines():
        demo.run("bash", "-c", line)


def test_the_python_snippet(demo: Demo) -> None:
    out = demo.run(sys.executable, "-c", snippet("python", "forwardable"))
    assert out.startswith("forward to qwen qwen3.8-flash-next")


def test_the_buf_snippet(demo: Demo) -> None:
    assert "VERDICT_ADMITTED" in demo.run("bash", "-c", snippet("sh", "buf curl"))


@pytest.mark.timeout(180)
@pytest.mark.skipif(not shutil.which("npm"), reason="needs node and npm")
def test_the_node_snippet(demo: Demo, tmp_path: Path) -> None:
    subprocess.run(["npm", "install", "--silent", "--prefix", tmp_path, *NODE_PACKAGES], check=True, timeout=120)
    program = tmp_path / "readme.js"
    program.write_text(snippet("js", "grpc-js"))
    assert demo.run("node", program) == "forward to qwen/qwen3.8-flash-next\n"


@pytest.mark.timeout(240)
def test_a_stopped_engine_is_noticed_and_a_pin_survives_a_crash(demo: Demo) -> None:
    token = demo.directory / "state" / "local.token"
    with Client(ADDRESS, token_file=token) as client:
        assert client.admit("managed/local", "earlier", request_bytes=1).may_forward
        (engine,) = re.findall(r"stand-in engine .*\(process (\d+)\)", demo.log.read_text())
        os.kill(int(engine), signal.SIGTERM)
        deadline = time.monotonic() + FACTS_AND_WAIT + 5
        asked = 0
        while True:
            asked += 1
            refused = client.admit("managed/local", f"new-{asked}", request_bytes=1)
            if not refused.may_forward:
                break
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert refused.refusal is not None
        assert refused.refusal.retryable
        pin = client.look_up_pin("managed/local", "earlier").record
    demo.restart()
    with Client(ADDRESS, token_file=token) as client:
        assert client.look_up_pin("managed/local", "earlier").record == pin
        assert client.admit("managed/local", "earlier", request_bytes=1).pinned
