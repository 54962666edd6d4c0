"""Calls over a real connection: retries, deadlines, identity and typed errors, in both clients."""

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc import aio
from tidegate import AsyncClient, Client, InvalidArgument, RetryPolicy, TidegateError, Unauthenticated, Unavailable
from tidegate.retry import NO_RETRY
from tidegate.v1 import admission_pb2, admission_pb2_grpc, types_pb2

EAGER = RetryPolicy(first=0.0)


class Scripted(admission_pb2_grpc.AdmissionServiceServicer):
    """Answers each Admit by the next step of a script, and notes what it saw."""

    def __init__(self) -> None:
        self.script: list[Callable[[Any], Any]] = []
        self.metadata: list[dict[str, str]] = []
        self.time_left: list[float] = []

    async def Admit(self, request: Any, context: Any) -> admission_pb2.AdmitResponse:
        self.metadata.append(dict(context.invocation_metadata()))
        self.time_left.append(context.time_remaining())
        step = self.script.pop(0)(context)
        answer: admission_pb2.AdmitResponse = await step if hasattr(step, "__await__") else step
        return answer

    async def _unused(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    AdmitBatch = Pin = Capacity = Catalog = ReportCapacity = _unused
    CapacityFeed = _unused  # type: ignore[assignment]


def admitted(context: Any) -> admission_pb2.AdmitResponse:
    return admission_pb2.AdmitResponse(verdict=types_pb2.VERDICT_ADMITTED)


def status(code: grpc.StatusCode, *details: Any) -> Callable[[Any], Any]:
    rich = status_pb2.Status(code=code.value[0], message="no")
    for detail in details:
        rich.details.add().Pack(detail)
    trailers = (("grpc-status-details-bin", rich.SerializeToString()),)
    return lambda context: context.abort(code, "no", trailers)


def info(reason: str, domain: str = "tidegate") -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata={"model": "m"})


@pytest.fixture
async def servicer() -> Scripted:
    return Scripted()


@pytest.fixture
async def target(servicer: Scripted, tmp_path: Path) -> AsyncIterator[str]:
    address = f"unix:{tmp_path}/server.sock"
    server = aio.server()
    admission_pb2_grpc.add_AdmissionServiceServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    await server.start()
    yield address
    await server.stop(None)


async def test_unavailable_is_repeated_within_the_deadline(servicer: Scripted, target: str) -> None:
    servicer.script = [status(grpc.StatusCode.UNAVAILABLE), status(grpc.StatusCode.UNAVAILABLE), admitted]
    a_second_each_time_it_is_read = count()
    policy = RetryPolicy(first=0.0, clock=lambda: float(next(a_second_each_time_it_is_read)))
    async with AsyncClient(target, retry=policy, timeout=60) as client:
        assert (await client.admit("m", "w", 1)).may_forward
    assert servicer.time_left == pytest.approx([59, 57, 55], abs=0.9)


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code.name not in {"OK", "UNAVAILABLE"}])
async def test_nothing_else_is_repeated(servicer: Scripted, target: str, code: grpc.StatusCode) -> None:
    servicer.script = [status(code), admitted]
    async with AsyncClient(target, retry=EAGER) as client:
        with pytest.raises(TidegateError) as caught:
            await client.admit("m", "w", 1)
        assert caught.value.code is code
    assert len(servicer.script) == 1


async def test_a_retry_info_past_the_deadline_is_not_waited_for(servicer: Scripted, target: str) -> None:
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=60))
    servicer.script = [status(grpc.StatusCode.UNAVAILABLE, info("PIN_STORE_UNAVAILABLE"), retry), admitted]
    async with AsyncClient(target, timeout=5) as client:
        answer = await client.forwardable("m", "w", 1)
    assert not answer.may_forward
    assert isinstance(answer.error, Unavailable)
    assert answer.error.reason == "PIN_STORE_UNAVAILABLE"
    assert answer.retry_delay is not None
    assert answer.retry_delay.total_seconds() == 60
    assert len(servicer.script) == 1


def test_the_wait_is_what_the_server_asks_plus_a_bounded_random_part() -> None:
    policy = RetryPolicy(first=0.1, longest=2.0, draw=lambda: 1.0)
    assert [policy.delay(attempt, None) for attempt in (1, 2, 3, 9)] == pytest.approx([0.1, 0.2, 0.4, 2.0])
    asked = Unavailable("no", retry_delay=duration_pb2.Duration(seconds=3).ToTimedelta())
    assert policy.delay(1, asked) == pytest.approx(3.1)
    assert RetryPolicy(draw=lambda: 0.0).delay(5, asked) == 3.0


async def test_an_error_carries_reason_metadata_and_violations(servicer: Scripted, target: str) -> None:
    violation = error_details_pb2.BadRequest.FieldViolation(field="worker_id", description="is blank")
    bad = error_details_pb2.BadRequest(field_violations=[violation])
    servicer.script = [status(grpc.StatusCode.INVALID_ARGUMENT, info("INVALID_REQUEST"), bad)]
    async with AsyncClient(target) as client:
        with pytest.raises(InvalidArgument, match="worker_id: is blank") as caught:
            await client.admit("m", "", 1)
    assert caught.value.reason == "INVALID_REQUEST"
    assert caught.value.metadata == {"model": "m"}
    assert [(fault.field, fault.description) for fault in caught.value.violations] == [("worker_id", "is blank")]


async def test_a_reason_of_another_domain_is_not_taken_for_ours(servicer: Scripted, target: str) -> None:
    servicer.script = [status(grpc.StatusCode.INTERNAL, info("PIN_STORE_UNAVAILABLE", "proxy.example"))]
    async with AsyncClient(target) as client:
        answer = await client.forwardable("m", "w", 1)
    assert answer.error is not None
    assert answer.error.reason == ""


async def test_details_that_nobody_can_read_do_not_hide_the_status(servicer: Scripted, target: str) -> None:
    trailers = (("grpc-status-details-bin", b"\xff\xff"),)
    servicer.script = [lambda context: context.abort(grpc.StatusCode.NOT_FOUND, "no such model", trailers)]
    async with AsyncClient(target) as client:
        with pytest.raises(TidegateError, match="no such model") as caught:
            await client.admit("m", "w", 1)
    assert caught.value.code is grpc.StatusCode.NOT_FOUND


async def test_nobody_there_fails_closed(tmp_path: Path) -> None:
    async with AsyncClient(f"unix:{tmp_path}/nobody.sock", retry=NO_RETRY, timeout=5) as client:
        assert not (await client.forwardable("m", "w", 1)).may_forward
        assert not await client.serving()
    with Client(f"unix:{tmp_path}/nobody.sock", retry=NO_RETRY, timeout=5) as blocking:
        assert not blocking.forwardable("m", "w", 1).may_forward
        assert not blocking.serving()


async def test_the_token_goes_with_every_call(servicer: Scripted, target: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    servicer.script = [admitted, admitted]
    async with AsyncClient(target, token_file=token) as client:
        await client.admit("m", "w", 1)
        token.write_text("rotated\n")
        await client.admit("m", "w", 1)
    assert [seen["authorization"] for seen in servicer.metadata] == ["Bearer first", "Bearer rotated"]


async def test_a_token_file_that_is_gone_fails_closed(target: str, tmp_path: Path) -> None:
    async with AsyncClient(target, token_file=tmp_path / "gone") as client:
        answer = await client.forwardable("m", "w", 1)
    assert not answer.may_forward
    assert answer.error is not None
    assert answer.error.code is Unauthenticated.code


async def test_a_network_where_a_handshake_takes_its_time_is_no_dead_server(servicer: Scripted, target: str) -> None:
    connections = []
    ended = asyncio.Event()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()
        await writer.wait_closed()

    async def far_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await asyncio.sleep(0.3)  # the network, not the test, is slow
        there, back = await asyncio.open_unix_connection(target.removeprefix("unix:"))
        await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)
        ended.set()

    servicer.script = [admitted]
    proxy = await asyncio.start_server(far_away, "127.0.0.1", 0)
    async with proxy, AsyncClient(f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}", retry=NO_RETRY) as client:
        assert (await client.admit("m", "w", 1)).may_forward
        proxy.close()
    await ended.wait()
    assert len(connections) == 1
