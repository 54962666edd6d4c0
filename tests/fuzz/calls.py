"""Fuzz target: any bytes as the messages of any method, over the wire to a running server of every service."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from tidegate_server.config import ConfigurationSource
from tidegate_server.core.model import SECOND
from tidegate_server.rpc.access import ACCESS
from tidegate_server.testing import FakeClock
from tidegate_server.wiring.run import Running, start

from tests.integration.server.harness import CONFIG, bearer, health, quota, write

METHODS = tuple(sorted(ACCESS))
FAULTS = frozenset({grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS})
CLIENTS_OWN = "Internal error from Core"
"""What grpc's own client for asyncio says when it writes to a stream that the server has ended."""

HANGS_AFTER = 20
STREAM_ENDS_WITHIN = 0.05


class _Server:
    """One server for all inputs, on a clock that does not move: nobody waits for a collector."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self.running, self.channel, self.metadata = self.loop.run_until_complete(self._start())

    async def _start(self) -> tuple[Running, grpc.aio.Channel, tuple[tuple[str, str], ...]]:
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-fuzz-")))
        clock = FakeClock()
        path = write(directory, CONFIG, selection={"shortlistThreshold": 2, "shortlistSize": 2})
        running = await start(ConfigurationSource(path, {}), clock, self._stack)
        await clock.advance(10 * SECOND)
        channel = grpc.aio.insecure_channel(str(running.addresses[0]))
        token = (directory / "state" / "local.token").read_text().strip()
        report = message("/tidegate.v1.AdmissionService/ReportCapacity")
        for item in (health(), quota("codex", 50), quota("claude", 50)):
            report.observations.add().CopyFrom(item)
        report.collector_id = "c"
        call: Any = channel.unary_unary("/tidegate.v1.AdmissionService/ReportCapacity")
        await call(report.SerializeToString(), metadata=bearer(token))
        return running, channel, bearer(token)

    def close(self) -> None:
        """Stop it."""
        self.loop.run_until_complete(self.channel.close())
        self.loop.run_until_complete(self._stack.aclose())


_servers: list[_Server] = []


def server() -> _Server:
    """The one server."""
    if not _servers:
        _servers.append(_Server())
    return _servers[0]


def close() -> None:
    """Stop the server, if one was started."""
    while _servers:
        _servers.pop().close()


def method_of(name: str) -> Any:
    """What the protocol says of a method."""
    _, service, method = name.split("/")
    return descriptor_pool.Default().FindServiceByName(service).methods_by_name[method]


def message(name: str) -> Any:
    """An empty request of that method."""
    return message_factory.GetMessageClass(method_of(name).input_type)()


def calls(data: bytes) -> None:
    """One RPC: the first byte names the method, the rest is its request, or several of them with their lengths."""
    if not data:
        return
    at = server()
    name = METHODS[data[0] % len(METHODS)]
    at.loop.run_until_complete(asyncio.wait_for(_call(at, name, data[1:]), HANGS_AFTER))
    at.loop.run_until_complete(asyncio.wait_for(at.running.application.guard.idle(), HANGS_AFTER))


async def _call(at: _Server, name: str, data: bytes) -> None:
    found = method_of(name)
    parts = _parts(data) if found.client_streaming else [data]
    sent = [part for part in parts if _is_message(name, part)]  # what is none, gRPC answers by itself
    if not sent and not found.client_streaming:
        return
    channel: Any = at.channel
    try:
        if not found.server_streaming:
            await channel.unary_unary(name)(sent[0], metadata=at.metadata)
        elif found.client_streaming:
            await _converse(channel.stream_stream(name)(metadata=at.metadata), sent)
        else:
            await _drain(channel.unary_stream(name)(sent[0], metadata=at.metadata))
    except grpc.aio.AioRpcError as error:
        code, details = error.code(), error.details()
    else:
        return
    if details != CLIENTS_OWN:
        assert code not in FAULTS, (name, code, details)


def _is_message(name: str, part: bytes) -> bool:
    parsed: Message = message(name)
    try:
        parsed.ParseFromString(part)
    except DecodeError:
        return False
    return True


def _parts(data: bytes) -> list[bytes]:
    """Messages, each after its length in two bytes; the last is what is left."""
    parts = []
    while data:
        length = int.from_bytes(data[:2], "big")
        parts.append(data[2 : 2 + length])
        data = data[2 + length :]
    return parts[:20]


async def _converse(call: Any, sent: list[bytes]) -> None:
    """Send all, close, and read to the end."""
    try:
        for part in sent:
            await call.write(part)
        await call.done_writing()
    except asyncio.InvalidStateError:
        pass  # the server has ended it; what it said is read below
    while await call.read() is not grpc.aio.EOF:
        pass


async def _drain(call: Any) -> None:
    """Read what there is, then go away: it has no end of its own."""
    try:
        async with asyncio.timeout(STREAM_ENDS_WITHIN):
            while await call.read() is not grpc.aio.EOF:
                pass
    except TimeoutError:
        call.cancel()


def calls_seeds() -> Iterator[bytes]:
    """An empty request of each method, and telling ones of the important."""
    for index in range(len(METHODS)):
        yield bytes([index])
    for name, given in _TELLING:
        asked = message(name)
        _fill(asked, given)
        body = asked.SerializeToString()
        if method_of(name).client_streaming:
            body = len(body).to_bytes(2, "big") + body
        yield bytes([METHODS.index(name)]) + body


def _fill(asked: Any, given: dict[str, Any]) -> None:
    for field, value in given.items():
        if isinstance(value, dict):
            _fill(getattr(asked, field), value)
        elif isinstance(value, list):
            for item in value:
                _fill(getattr(asked, field).add(), item)
        else:
            setattr(asked, field, value)


_TRACE = "00-12345678901234567890123456789012-1234567890123456-01"
_ADMIT = {"model": "managed/routine", "worker_id": "w", "request_bytes": 10, "reasoning_effort": "high"}
_V1 = "/tidegate.v1."
_QUOTA = {"provider": "codex", "age": {"seconds": 1}, "quota": {"window": "5h", "remaining_percent": 12.5}}
_TELLING: tuple[tuple[str, dict[str, Any]], ...] = (
    (f"{_V1}AdmissionService/Admit", _ADMIT),
    (
        f"{_V1}AdmissionService/Admit",
        {**_ADMIT, "hop": {"traceparent": _TRACE, "target_agent": "a", "request_id": "r"}},
    ),
    (f"{_V1}AdmissionService/Admit", {**_ADMIT, "flow": {"traceparent": _TRACE, "agent": "a"}}),
    (f"{_V1}AdmissionService/AdmitBatch", {"requests": [_ADMIT, {"model": "qwen/qwen-next"}]}),
    (f"{_V1}AdmissionService/Pin", {"model": "managed/routine", "worker_id": "w", "mode": 2}),
    (f"{_V1}AdmissionService/ReportCapacity", {"collector_id": "c", "observations": [_QUOTA]}),
    (f"{_V1}AdmissionService/CapacityFeed", {"hello": {"collector_id": "c", "can_refresh": True}}),
    (
        f"{_V1}FlowService/EnterHop",
        {"traceparent": _TRACE, "target_agent": "a", "request_id": "r", "reserve_tokens": 5},
    ),
    (f"{_V1}FlowService/ExitHop", {"traceparent": _TRACE, "hop_id": "h", "tokens": 3}),
    (
        f"{_V1}SelectionService/RegisterAgent",
        {"agent": {"agent_id": "a", "name": "agent", "description": "does things"}},
    ),
    (f"{_V1}SelectionService/SelectAgent", {"query": "who", "session_id": "s"}),
    (f"{_V1}OperatorService/ClearBlockers", {"provider": "codex", "reason": "r"}),
)
