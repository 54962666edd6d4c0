"""What the gateway tests start: Tidegate itself, the example gateways, providers and agents on loopback."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from tests.conformance.clients import GO, go_binary, node_package

Json = dict[str, Any]
START_SECONDS = 30.0
TIDEGATE = Path(sys.prefix) / "bin/tidegate"


class Served(NamedTuple):
    """A running Tidegate."""

    address: str
    token: Path
    process: "subprocess.Popen[str]"

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(START_SECONDS)


@contextmanager
def tidegate(config: Json, directory: Path, *arguments: str) -> Iterator[Served]:
    """`tidegate serve` with this configuration on a port of its own."""
    file, state = directory / "tidegate.json", directory / "state"
    file.write_text(json.dumps(config))
    command = [str(TIDEGATE), "serve", "--config", str(file), "--state-directory", str(state)]
    with process([*command, *(arguments or ("--listen", "127.0.0.1:0"))], directory) as (child, said):
        address = said(r"listening on (\S+)")
        yield Served(address.rstrip(","), state / "local.token", child)


@contextmanager
def process(command: Sequence[str], directory: Path, **environment: str) -> Iterator[Any]:
    """A child process, and a function that waits until it has said something; stopped at the end."""
    log = directory / f"{Path(command[0]).name}-{time.monotonic_ns()}.log"
    with log.open("w") as out:
        variables = {**os.environ, **environment}
        child = subprocess.Popen(command, stdout=out, stderr=out, text=True, cwd=directory, env=variables)

    def said(pattern: str) -> str:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            found = re.search(pattern, log.read_text())
            if found:
                return found.group(found.re.groups)
            assert child.poll() is None, f"{command[0]} ended:\n{log.read_text()}"
            time.sleep(0.02)
        raise AssertionError(f"{command[0]} never said {pattern}:\n{log.read_text()}")

    try:
        yield child, said
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
        if child.poll() is None:
            child.kill()
            child.wait()


def free_address() -> str:
    """A loopback address with a port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def go_gateway() -> list[str]:
    """The example of the Go client."""
    return [str(go_binary(GO, "./examples/gateway", "gateway-go"))]


def node_gateway() -> list[str]:
    """The example of the TypeScript client."""
    return ["node", str(node_package() / "dist/examples/gateway.js")]


GATEWAYS: dict[str, Callable[[], list[str]]] = {"go": go_gateway, "node": node_gateway}
MILLISECONDS = {"go": "{}ms", "node": "{}"}


@contextmanager
def gateway(
    kind: str, server: str, directory: Path, *, token: Path | None = None, timeout: int = 3500,
    upstreams: dict[str, str], agents: Sequence[str] = (),
) -> Iterator[str]:  # fmt: skip
    """An example gateway; its base URL."""
    address = free_address()
    command = [*GATEWAYS[kind](), "--listen", address, "--timeout", MILLISECONDS[kind].format(timeout)]
    for name, url in upstreams.items():
        command += ["--upstream", f"{name}={url}"]
    for agent in agents:
        command += ["--agent", agent]
    environment = {"TIDEGATE_SERVER": server, "TIDEGATE_TOKEN_FILE": str(token or "")}
    with process(command, directory, **environment) as (_, said):
        said(r"the gateway listens on")
        yield f"http://{address}"


class Request(NamedTuple):
    """A request that reached the provider."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Provider:
    """A provider, or an agent, on loopback: keeps what reaches it, answers at once or in two halves."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)
    """Set by the test between the two halves of a stream."""
    arrived: threading.Condition = field(default_factory=threading.Condition)
    close: Callable[[], None] = lambda: None
    """Stops listening."""

    def wait_for(self, count: int) -> Request:
        """Wait until it has had so many requests; the newest one."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.requests) >= count, START_SECONDS), "it was not called"
            return self.requests[-1]


@contextmanager
def provider() -> Iterator[Provider]:
    """Start one."""
    state = Provider()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with state.arrived:
                state.requests.append(Request(self.path, headers, body))
                state.arrived.notify_all()
            if b'"stream":true' in body:
                self._stream()
                return
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", "17")
            self.end_headers()
            self.wfile.write(b'{"id":"answer-1"}')

        def _stream(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for part in (b"data: one\n\n", b"data: two\n\n"):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.wfile.flush()
                state.go_on.wait(START_SECONDS)
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url, state.close = f"http://127.0.0.1:{server.server_port}", server.server_close
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield state
    finally:
        state.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()
