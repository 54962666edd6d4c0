"""A running server in this process on a clock that the test moves, and a collector that speaks the wire by hand."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import admission_pb2_grpc as rpc
from tidegate.v1 import operator_pb2, operator_pb2_grpc, types_pb2
from tidegate_server.config import ConfigurationSource
from tidegate_server.ports import Clock
from tidegate_server.testing import FakeClock
from tidegate_server.wiring.run import Running, start

Json = dict[str, Any]

QWEN, CLAUDE, CODEX, PAID = "qwen/qwen-next", "claude/sonnet", "codex/sol", "or-deepseek"

CONFIG: Json = {
    "providers": {
        "qwen": {
            "kind": "local",
            "credential": "none",
            "models": {"qwen-next": {"contextWindow": 131072, "reasoningEfforts": ["low", "high"]}},
        },
        "claude": {
            "kind": "subscription",
            "credential": "claude-oauth:primary",
            "requiredWindows": ["5h", "7d"],
            "models": {"sonnet": {"contextWindow": 200000, "reasoningEfforts": ["low", "high"]}},
        },
        "codex": {
            "kind": "subscription",
            "credential": "codex-login:main",
            "models": {"sol": {"contextWindow": 272000, "reasoningEfforts": ["low", "high"]}},
        },
        "openrouter": {
            "kind": "paid",
            "credential": "env:OPENROUTER_API_KEY",
            "models": {
                "deepseek/deepseek-v4-flash": {
                    "alias": PAID,
                    "contextWindow": 163840,
                    "reasoningEfforts": ["low", "high"],
                }
            },
        },
    },
    "managedRouting": {
        "routes": {
            "managed/local": {
                "purpose": "routine",
                "candidates": [QWEN],
                "contextWindow": 32768,
                "maxContextBytes": 262144,
            },
            "managed/routine": {
                "purpose": "routine",
                "candidates": [QWEN, CLAUDE, CODEX, PAID],
                "contextWindow": 32768,
                "maxContextBytes": 262144,
                "allowPaid": True,
            },
            "managed/accounts": {
                "purpose": "routine",
                "candidates": [CODEX, PAID],
                "contextWindow": 32768,
                "maxContextBytes": 262144,
                "allowPaid": True,
            },
        }
    },
}


def route(*candidates: str, **settings: Any) -> Json:
    """A route of these candidates."""
    size = {"contextWindow": 32768, "maxContextBytes": 262144}
    return {"purpose": "routine", "candidates": list(candidates), **size, **settings}


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop and the sockets work until something is so. No time has to pass for it."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


class Served:
    """A running server with what a test asks it through."""

    def __init__(self, running: Running, clock: Clock, channel: grpc.aio.Channel, directory: Path) -> None:
        self.running = running
        self.application = running.application
        self.clock = clock
        self.channel = channel
        self.directory = directory
        self.address = str(running.addresses[0])
        self.admission: rpc.AdmissionServiceAsyncStub = rpc.AdmissionServiceStub(channel)
        self.operator: operator_pb2_grpc.OperatorServiceAsyncStub = operator_pb2_grpc.OperatorServiceStub(channel)
        self.health: Any = health_pb2_grpc.HealthStub(channel)
        token = directory / "state" / "local.token"
        self.metadata = bearer(token.read_text().strip()) if token.exists() else ()

    @property
    def fake(self) -> FakeClock:
        """The clock of a server that was started on one."""
        assert isinstance(self.clock, FakeClock)
        return self.clock

    async def admit(
        self, model: str = "managed/local", worker_id: str = "w", request_bytes: int = 1, **options: Any
    ) -> wire.AdmitResponse:
        """One admission, without a deadline unless `timeout` is given."""
        timeout = options.pop("timeout", None)
        request = wire.AdmitRequest(model=model, worker_id=worker_id, request_bytes=request_bytes, **options)
        return await self.admission.Admit(request, timeout=timeout)

    async def report(self, *observations: types_pb2.Observation, collector: str = "c") -> list[wire.ItemResult]:
        """Facts without a stream."""
        request = wire.ReportCapacityRequest(collector_id=collector, observations=observations)
        return list((await self.admission.ReportCapacity(request, metadata=self.metadata)).results)

    async def facts(self, *providers: str) -> list[types_pb2.Fact]:
        """What the server knows."""
        return list((await self.admission.Capacity(wire.CapacityRequest(providers=providers))).facts)

    async def status(self) -> operator_pb2.GetStatusResponse:
        """The operator's view."""
        return await self.operator.GetStatus(operator_pb2.GetStatusRequest(), metadata=self.metadata)

    async def serving(self, service: str = "") -> Any:
        """What Check says."""
        return (await self.health.Check(health_pb2.HealthCheckRequest(service=service))).status

    def collector(self, name: str = "c", *providers: str, **options: Any) -> "Collector":
        """A collector that has not connected yet."""
        return Collector(self, name, providers, **options)

    @property
    def waiting(self) -> int:
        """How many admissions wait for facts."""
        return self.application.cold_wait.waiting

    @property
    def sessions(self) -> int:
        """How many feeds are open."""
        return len(self.application.feeds.sessions)

    def write(self, config: Json, **settings: Any) -> None:
        """Change the configuration file."""
        write(self.directory, config, **settings)


class Collector:
    """One CapacityFeed, message by message; `async with` says hello and is welcomed."""

    def __init__(
        self,
        served: Served,
        name: str,
        providers: Iterable[str] = (),
        *,
        can_refresh: bool = True,
        interval: int = 0,
        metadata: Any = None,
    ) -> None:
        self._call: Any = served.admission.CapacityFeed(metadata=served.metadata if metadata is None else metadata)
        self._hello = wire.Hello(
            collector_id=name, providers=providers, can_refresh=can_refresh, interval=Duration(seconds=interval)
        )
        self._sequence = 0

    async def __aenter__(self) -> Self:
        welcome = await self.connect()
        assert welcome.WhichOneof("message") == "welcome"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._call.cancel()

    async def connect(self) -> wire.CapacityFeedResponse:
        """Say hello, return the answer."""
        await self.say(hello=self._hello)
        return await self.hear()

    async def say(self, **message: Any) -> None:
        """One message; the names are those of the oneof."""
        await self._call.write(wire.CapacityFeedRequest(**message))

    async def send(self, *observations: types_pb2.Observation) -> wire.Ack:
        """A batch; its acknowledgement."""
        self._sequence += 1
        await self.say(batch=wire.Batch(sequence=self._sequence, observations=observations))
        answer = await self.hear()
        assert answer.ack.sequence == self._sequence
        return answer.ack

    async def hear(self) -> wire.CapacityFeedResponse:
        """The server's next message."""
        answer = await asyncio.wait_for(self._call.read(), 10)
        assert answer is not grpc.aio.EOF, await self.end()
        assert isinstance(answer, wire.CapacityFeedResponse)
        return answer

    async def asked(self) -> wire.Refresh:
        """The next message, which is a refresh."""
        answer = await self.hear()
        assert answer.HasField("refresh"), answer
        return answer.refresh

    async def answer(self, refresh: wire.Refresh, *failed: str) -> None:
        """Say that a refresh is done, and what of it failed."""
        result = wire.RefreshResult(refresh_id=refresh.refresh_id, failed_providers=failed)
        await self.say(refresh_result=result)

    async def nothing_more(self) -> bool:
        """Close this side; whether the server closes the stream well and without another message."""
        await self._call.done_writing()
        return await asyncio.wait_for(self._call.read(), 10) is grpc.aio.EOF and await self.end() is None

    async def end(self) -> "Failure | None":
        """How the server ended the stream; None: well."""
        try:
            while await asyncio.wait_for(self._call.read(), 10) is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return Failure(error)
        code = await self._call.code()
        return None if code is grpc.StatusCode.OK else Failure(await _error_of(self._call))


async def _error_of(call: Any) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
    )


class Failure:
    """A status with its details unpacked."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code = error.code().name
        self.text = error.details() or ""
        self.trailers = tuple(error.trailing_metadata() or ())
        status = rpc_status.from_call(error)  # type: ignore[arg-type] # it has what is read of a call
        self.reason, self.domain = "", ""
        self.metadata: dict[str, str] = {}
        self.fields: list[str] = []
        self.descriptions: list[str] = []
        self.retry_delay: float | None = None
        for detail in status.details if status is not None else ():
            self._take(detail)

    def _take(self, detail: Any) -> None:
        info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            assert not self.reason, "one ErrorInfo, no more"
            self.reason, self.domain, self.metadata = info.reason, info.domain, dict(info.metadata)
        elif detail.Unpack(bad):
            self.fields = [violation.field for violation in bad.field_violations]
            self.descriptions = [violation.description for violation in bad.field_violations]
        elif detail.Unpack(retry):
            self.retry_delay = retry.retry_delay.ToTimedelta().total_seconds()

    @property
    def trailer_bytes(self) -> int:
        """The size of all trailers, with the 32 bytes that HTTP/2 counts for each."""
        return sum(len(key) + len(value) + 32 for key, value in self.trailers)

    def __repr__(self) -> str:
        return f"{self.code} {self.reason} {self.fields} {self.text!r}"


async def failure(call: Any) -> Failure:
    """The status that a call ends with; AssertionError when it ends well."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return Failure(error)
    raise AssertionError(f"it ended well: {answer}")


def identity(name: str, role: str, **settings: Any) -> Json:
    """A configured identity, whose token is its name and `-token`."""
    digest = hashlib.sha256(f"{name}-token".encode()).hexdigest()
    return {"name": name, "role": role, "tokenSha256": digest, **settings}


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a caller with a token."""
    return (("authorization", f"Bearer {token}"),)


def write(directory: Path, config: Json, **settings: Any) -> Path:
    """The configuration as a file, on a free port and with a state directory of its own."""
    path = directory / "tidegate.json"
    own = {"listen": "127.0.0.1:0", "stateDirectory": str(directory / "state"), "admin": {"listen": "127.0.0.1:0"}}
    path.write_text(json.dumps({**own, **config, **settings}))
    return path


@asynccontextmanager
async def serving(
    directory: Path, config: Json = CONFIG, *, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[Served]:
    """A server on a clock of its own, and a channel to it."""
    clock = clock or FakeClock()
    source = ConfigurationSource(write(directory, config, **settings), {})
    async with AsyncExitStack() as stack:
        running = await start(source, clock, stack)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(str(running.addresses[0])))
        yield Served(running, clock, channel, directory)


# --- observations -----------------------------------------------------------------------------------------------------


def health(
    provider: str = "qwen", state: int = types_pb2.HEALTH_STATE_HEALTHY, *, age: float = 0.0
) -> types_pb2.Observation:
    """A local engine's health."""
    value = types_pb2.Health(state=state)  # type: ignore[arg-type]
    return types_pb2.Observation(provider=provider, age=_length(age), health=value)


def quota(provider: str, remaining: float, window: str = "5h", *, age: float = 0.0) -> types_pb2.Observation:
    """One window of a subscription."""
    value = types_pb2.Quota(window=window, remaining_percent=remaining)
    return types_pb2.Observation(provider=provider, age=_length(age), quota=value)


def balance(provider: str = "openrouter", amount: str = "12.50", *, age: float = 0.0) -> types_pb2.Observation:
    """Money on a paid account that may be used."""
    value = types_pb2.Balance(currency="USD", amount=amount, available=True)
    return types_pb2.Observation(provider=provider, age=_length(age), balance=value)


def blocked(
    provider: str, blocker: types_pb2.Blocker.ValueType, *, model: str = "", age: float = 0.0
) -> types_pb2.Observation:
    """An availability row."""
    value = types_pb2.Availability(state=types_pb2.AVAILABILITY_STATE_BLOCKED, blocker=blocker)
    return types_pb2.Observation(provider=provider, model=model, age=_length(age), availability=value)


def _length(seconds: float) -> Duration:
    whole = int(seconds)
    return Duration(seconds=whole, nanos=round((seconds - whole) * 1e9))
