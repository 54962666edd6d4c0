"""Envoy with the example's configuration, between callers, Tidegate and engines on loopback."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from google.protobuf import duration_pb2
from tidegate import Client
from tidegate.v1 import types_pb2

from tests.gateways.processes import Request, Served, free_address, process, tidegate

Json = dict[str, Any]
ENVOY = Path(sys.prefix) / "bin/envoy"
"""Its wheel and xds-protos both own the package `envoy`, so that the wheel's own function may not be there to ask."""

EXAMPLE = Path(__file__).resolve().parents[3] / "docs/examples/envoy"
PATIENCE = 30.0
ROUTE = "managed/routine"
MIB = 1 << 20
HEALTHY, UNHEALTHY = types_pb2.HEALTH_STATE_HEALTHY, types_pb2.HEALTH_STATE_UNHEALTHY

INGRESS, ADMIN, TIDEGATE, LISTS, QWEN, GEMMA = 10000, 9901, 50051, 9464, 8000, 8001
"""The ports of the example."""

NO_PORTS: Mapping[int, int] = MappingProxyType({})


def example(name: str = "envoy.yaml") -> Any:
    """A file of the example, read."""
    return yaml.safe_load((EXAMPLE / name).read_text())


def port_of(address: str) -> int:
    """The port of host:port, or of a base URL."""
    return int(address.rpartition(":")[2])


def moved(document: Any, ports: Mapping[int, int]) -> Any:
    """The configuration with other ports in the place of the example's, and nothing else changed."""
    if isinstance(document, dict):
        return {key: ports[value] if key == "port_value" else moved(value, ports) for key, value in document.items()}
    return [moved(item, ports) for item in document] if isinstance(document, list) else document


def until(holds: Callable[[], bool]) -> None:
    """Ask again and again, as long as it takes and no longer than PATIENCE."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.02)


@contextmanager
def envoy(ports: Mapping[int, int], directory: Path, document: Any = None) -> Iterator[str]:
    """A running Envoy; its base URL. `document`: another configuration than the example's."""
    own = {INGRESS: port_of(free_address()), ADMIN: port_of(free_address())}
    unused = {LISTS: 1, QWEN: 1, GEMMA: 1}
    config = directory / "envoy.json"
    config.write_text(json.dumps(moved(document or example(), {**unused, **ports, **own})))
    command = [str(ENVOY), "-c", str(config), "--concurrency", "1", "--disable-hot-restart"]
    with process(command, directory) as (_, said):
        said(r"all dependencies initialized. starting workers")
        yield f"http://127.0.0.1:{own[INGRESS]}"


@dataclass
class Engine:
    """A provider that speaks OpenAI's API: keeps what reaches it, and answers as much as an SDK needs."""

    port: int = 0
    requests: list[Request] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)
    """Set by the test between the first chunk of a stream and the rest."""

    stop: Callable[[], None] = lambda: None
    """Ends it before the test does."""

    @property
    def bodies(self) -> list[Json]:
        """What reached it, read."""
        return [json.loads(request.body) for request in self.requests]


def chunk(text: str) -> bytes:
    """One event of a streamed completion; an odd comment and odd spaces show whether somebody rewrites it."""
    delta = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    event = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [delta]}
    return b": ping\ndata:   " + json.dumps(event).encode() + b"\n\n"


METRICS = "".join(
    f'vllm:{name}{{engine="0",model_name="{model}"}} {value}\n'
    for model in ("qwen3.8-flash-next", "gemma-4-31b")
    for name, value in (
        ("num_requests_running", 0.0), ("num_requests_waiting", 0.0), ("kv_cache_usage_perc", 0.0),
        ("generation_tokens_total", 7.0),
    )
)  # fmt: skip
"""What a vLLM says of itself that serves nobody."""

STREAM = (chunk("待機 "), chunk("two"), b"data: [DONE]\n\n")


def completion(model: str) -> Json:
    """A chat completion."""
    message = {"role": "assistant", "content": "done"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}


def model_response(model: str) -> Json:
    """A response of the Responses API."""
    text = {"type": "output_text", "text": "done", "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
    return {
        "id": "r", "object": "response", "created_at": 1, "model": model, "status": "completed", "output": [message],
        "parallel_tool_calls": False, "tool_choice": "auto", "tools": [],
    }  # fmt: skip


@contextmanager
def engine() -> Iterator[Engine]:
    """Start one."""
    state = Engine()
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            state.requests.append(Request(self.path, headers, body))
            if over.is_set():
                return self._hang_up()
            asked = json.loads(body)
            if asked.get("stream"):
                return self._stream()
            answer = completion if self.path.endswith("/chat/completions") else model_response
            content = json.dumps(answer(asked["model"])).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return None

        def do_GET(self) -> None:
            if over.is_set():
                return self._hang_up()
            page = METRICS.encode()
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
            return None

        def _hang_up(self) -> None:
            self.close_connection = True

        def _stream(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for part in STREAM:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.wfile.flush()
                assert state.go_on.wait(PATIENCE)
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()

    def stop() -> None:
        over.set()  # also for connections that are kept alive
        state.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()

    state.stop = stop
    try:
        yield state
    finally:
        stop()


@dataclass
class World:
    """Envoy between a caller, Tidegate and two engines."""

    url: str
    directory: Path
    config: Json
    address: str
    qwen: Engine
    gemma: Engine
    running: ExitStack
    server: Served

    @classmethod
    @contextmanager
    def start(
        cls, directory: Path, document: Any = None, ports: Mapping[int, int] = NO_PORTS, **settings: Any
    ) -> Iterator["World"]:
        """Everything, started.

        `document`: another Envoy configuration, with more `ports`; `settings`: of Tidegate, over the example's.
        """
        address = free_address()
        lists = free_address()
        tests_own = {"admin": {"listen": lists}, "coldWait": "0.2s", "freshness": {"health": "60s"}}
        config = {**example("tidegate.yaml"), **tests_own, **settings}
        with engine() as qwen, engine() as gemma, ExitStack() as running:
            server = running.enter_context(tidegate(config, directory, "--listen", address))
            own = {TIDEGATE: port_of(address), LISTS: port_of(lists), QWEN: qwen.port, GEMMA: gemma.port}
            with envoy({**own, **ports}, directory, document) as url:
                yield cls(url, directory, config, address, qwen, gemma, running, server)

    def report(self, **states: types_pb2.HealthState.ValueType) -> None:
        """Tell Tidegate how the engines are."""
        samples = [
            types_pb2.Observation(provider=name, age=duration_pb2.Duration(), health=types_pb2.Health(state=state))
            for name, state in states.items()
        ]
        with Client(self.server.address, token_file=self.server.token) as client:
            client.report_capacity("tests", samples)

    def restart(self) -> None:
        """Stop Tidegate, and start it again on the same state."""
        self.running.close()
        self.server = self.running.enter_context(tidegate(self.config, self.directory, "--listen", self.address))

    def calls(self) -> int:
        """How many requests reached a provider."""
        return len(self.qwen.requests) + len(self.gemma.requests)
