"""What one caller can take: sizes, streams, time, memory (§13 of the contract); and no RPC that hangs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import flow_pb2, flow_pb2_grpc, operator_pb2, types_pb2
from tidegate_server.core.model import SECOND
from tidegate_server.rpc.feed_stream import HELLO_WITHIN
from tidegate_server.rpc.health import SERVING
from tidegate_server.stores.sqlite_pins import SqlitePinStore
from tidegate_server.usecases import feeds, report
from tidegate_server.usecases.admit import Admit
from tidegate_server.usecases.pins_operator import VerifyPins
from tidegate_server.wiring import listeners

from tests.e2e import processes
from tests.integration.server.harness import CONFIG, Failure, Served, bearer, failure, identity, quota, serving, until
from tests.security.serving import BINDABLE, ROUTE, ends

ADMIT = "/tidegate.v1.AdmissionService/Admit"
CAP = 30 * SECOND
"""`limits.defaultDeadline` when it is left out."""


def own_channel(server: Served, **options: int) -> grpc.aio.Channel:
    """A connection of its own."""
    more = [("grpc.use_local_subchannel_pool", 1), *options.items()]
    return grpc.aio.insecure_channel(server.address, options=more)


async def test_metadata_is_bounded(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        request = wire.CatalogRequest()
        fits = await server.admission.Catalog(request, metadata=(("x-note", "a" * 6_000),))
        assert fits.models
        end = await failure(server.admission.Catalog(request, metadata=(("x-note", "a" * 10_000),)))
        assert end.code == "RESOURCE_EXHAUSTED"
        assert (await server.admission.Catalog(request)).models


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_message_that_inflates_is_refused_before_it_fills_the_memory(
    tmp_path: Path, compression: grpc.Compression
) -> None:
    """128 MiB in 128 KiB: its size counts as it comes out, and coming out stops there."""
    bomb = b"\xfa\x07" + _varint(128 << 20) + bytes(128 << 20)
    with processes.served(processes.write(tmp_path)) as process:
        unlimited = [("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(process.address, options=unlimited) as channel:
            call: Any = channel.unary_unary(ADMIT, request_serializer=lambda sent: sent)
            assert _status(call, b"", compression) == "NOT_FOUND"  # the method's own answer to an empty request
            before = _peak_memory(process.pid)
            assert _status(call, bomb, compression) == "RESOURCE_EXHAUSTED"
            assert _status(call, b"", compression) == "NOT_FOUND"
            assert _peak_memory(process.pid) - before < 64 << 20


def _status(call: Any, message: bytes, compression: grpc.Compression) -> str:
    try:
        call(message, compression=compression, timeout=60)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def _peak_memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


async def test_a_connection_has_so_many_calls_in_work_and_the_others_wait_with_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "STREAMS_PER_CONNECTION", 4)
    async with serving(tmp_path, limits={"maxConcurrentCalls": 6}) as server, own_channel(server) as own:
        await server.fake.advance(3 * SECOND)
        async with server.collector():
            greedy = [asyncio.ensure_future(admit_over(own, f"w{i}")) for i in range(50)]
            await until(lambda: server.waiting == 4)
            assert await server.serving("liveness") == SERVING  # stores' health may miss a jump of the fake clock
            also = asyncio.ensure_future(server.admit(worker_id="also"))  # another connection has its own share
            await until(lambda: server.waiting == 5)
            assert server.application.guard.shed == 0
            for call in (*greedy, also):
                call.cancel()
            await until(lambda: server.application.guard.running == 0)


async def admit_over(channel: grpc.aio.Channel, worker: str) -> Any:
    """One admission to a route over that channel."""
    call = channel.unary_unary(ADMIT, wire.AdmitRequest.SerializeToString, wire.AdmitResponse.FromString)
    return await call(wire.AdmitRequest(model=ROUTE, worker_id=worker, request_bytes=1))


async def test_what_frees_something_is_never_shed(tmp_path: Path) -> None:
    async with serving(tmp_path, limits={"maxConcurrentCalls": 1}) as server, server.collector():
        await server.fake.advance(3 * SECOND)
        waiting = asyncio.ensure_future(server.admit())
        await until(lambda: server.waiting == 1)
        flows: flow_pb2_grpc.FlowServiceAsyncStub = flow_pb2_grpc.FlowServiceStub(server.channel)
        parent = f"00-{'a' * 32}-{'b' * 16}-01"
        entering = flows.EnterHop(flow_pb2.EnterHopRequest(traceparent=parent, target_agent="a", request_id="r"))
        assert (await failure(entering)).reason == "OVERLOADED"
        exiting = flows.ExitHop(flow_pb2.ExitHopRequest(traceparent=parent, hop_id="none"))
        assert await ends(exiting) != "RESOURCE_EXHAUSTED"
        waiting.cancel()


async def test_streams_are_bounded_before_they_say_anything(tmp_path: Path) -> None:
    async with serving(tmp_path, limits={"maxFeeds": 1}) as server:
        silent = [server.admission.CapacityFeed(metadata=server.metadata) for _ in range(258)]
        guard = server.application.guard
        await until(lambda: guard.streams == 258)
        end = await server.collector().end()
        assert end is not None
        assert (end.code, end.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert end.retry_delay is not None
        await server.fake.advance(HELLO_WITHIN)
        assert {(await call.code()).name for call in silent} == {"DEADLINE_EXCEEDED"}
        await until(lambda: guard.streams == 0)
        async with server.collector():
            assert server.sessions == 1


async def test_a_call_whose_message_never_comes_holds_no_place_and_no_drain(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with serving(tmp_path, limits={"maxConcurrentCalls": 1}) as server, own_channel(server) as own:
        silent: list[Any] = [own.stream_unary(ADMIT)() for _ in range(50)]  # headers, and no message ever
        await own.channel_ready()
        assert (await server.admit(BINDABLE)).verdict == types_pb2.VERDICT_BYPASSED
        assert await server.serving() == SERVING
        began = loop.time()
    assert loop.time() - began < 10
    assert {(await call.code()).name for call in silent} <= {"CANCELLED", "UNAVAILABLE"}


async def test_a_store_that_never_answers_costs_no_more_than_the_servers_own_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Admit, "__call__", never)
    async with serving(tmp_path) as server:
        calls = [asyncio.ensure_future(failure(server.admission.Admit(wire.AdmitRequest()))) for _ in range(3)]
        late = asyncio.ensure_future(failure(server.admission.Admit(wire.AdmitRequest(), timeout=600)))
        await until(lambda: server.application.guard.running == 4)
        await server.fake.advance(CAP - SECOND)
        assert server.application.guard.running == 4
        await server.fake.advance(3 * SECOND)
        for end in await asyncio.gather(*calls, late):
            assert (end.code, end.reason) == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")
        assert server.application.guard.running == 0


async def test_operators_may_take_as_long_as_there_are_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = asyncio.Event()
    verify = VerifyPins.__call__

    async def slow(self: VerifyPins) -> Any:
        await go.wait()
        return await verify(self)

    monkeypatch.setattr(VerifyPins, "__call__", slow)
    async with serving(tmp_path) as server:
        call = server.operator.VerifyPins(operator_pb2.VerifyPinsRequest(), metadata=server.metadata)
        await until(lambda: server.application.guard.running == 1)
        await server.fake.advance(10 * CAP)
        go.set()
        assert (await call).checked == 0


CUT_OFF = {
    "AdmitBatch": wire.AdmitBatchRequest(requests=[wire.AdmitRequest(model=ROUTE, worker_id="w", request_bytes=1)]),
    "Admit": wire.AdmitRequest(model=ROUTE, worker_id="w", request_bytes=1),
    "Pin": wire.PinRequest(model=ROUTE, worker_id="w", mode=types_pb2.PIN_MODE_LOOKUP),
}


@pytest.mark.parametrize("method", CUT_OFF)
async def test_a_cancelled_error_from_inside_is_an_answer_and_no_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    async def cancelled(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(SqlitePinStore, "get", cancelled)
    async with serving(tmp_path) as server:
        end = await failure(getattr(server.admission, method)(CUT_OFF[method], timeout=10))
        assert (end.code, end.reason) == ("INTERNAL", "INTERNAL")
        assert server.application.guard.running == 0


async def test_a_cancelled_error_inside_a_feed_ends_it_with_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(report.Report, "__call__", cancelled)
    async with serving(tmp_path) as server, server.collector() as collector:
        await collector.say(batch=wire.Batch(sequence=1))
        end = await collector.end()
        assert end is not None
        assert end.code == "INTERNAL"


async def test_facts_of_a_provider_are_bounded_and_what_is_known_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MAX_FACTS", 150)
    async with serving(tmp_path) as server:
        many = [quota("codex", 50, f"window {i}") for i in range(200)]
        results = await server.report(*many)
        assert [r.result for r in results[:150]] == [types_pb2.OBSERVATION_RESULT_ACCEPTED] * 150
        assert {r.result for r in results[150:]} == {types_pb2.OBSERVATION_RESULT_REFUSED}
        assert results[150].reason == "provider: there are 150 facts of it already; retract some first"
        await server.fake.advance(SECOND)
        assert [r.result for r in await server.report(*many[:150])] == [types_pb2.OBSERVATION_RESULT_ACCEPTED] * 150
        others = await server.report(quota("claude", 50), quota("codex", 50, "one more"), collector="another")
        assert [r.result for r in others] == [
            types_pb2.OBSERVATION_RESULT_ACCEPTED,
            types_pb2.OBSERVATION_RESULT_REFUSED,
        ]
        assert len(await server.facts()) == 151


async def test_a_collector_that_does_not_read_is_asked_no_more_than_it_may_have_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "ASKED", 2)
    async with serving(tmp_path) as server, server.collector():
        session = server.application.feeds.sessions[0]
        for number in range(50):
            server.application.feeds.ask("qwen", server.fake.monotonic() + number, server.fake.monotonic() + number)
        assert session.asked.qsize() <= 2


class Frames:
    """An HTTP/2 client by hand, for what no library would send."""

    PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    SETTINGS, PING, GOAWAY, ACK = 4, 6, 7, 1

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> None:
        """One frame."""
        head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
        self.writer.write(head + payload)

    async def received(self) -> AsyncIterator[tuple[int, int, bytes]]:
        """Kind, flags and payload of each frame until the server closes the connection."""
        while True:
            try:
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            yield head[3], head[4], payload


async def connected(server: Served, stack: AsyncExitStack) -> Frames:
    """A plain connection to the server."""
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    stack.push_async_callback(_closed, writer)
    return Frames(reader, writer)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_a_flood_of_pings_is_cut_and_calls_go_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, AsyncExitStack() as stack:
        frames = await connected(server, stack)
        frames.writer.write(Frames.PREFACE)
        frames.send(Frames.SETTINGS)
        for _ in range(4):  # two strikes are allowed
            frames.send(Frames.PING, bytes(8))
        goodbyes = [payload async for kind, _, payload in frames.received() if kind == Frames.GOAWAY]
        assert goodbyes
        assert goodbyes[-1][8:] == b"too_many_pings"
        assert goodbyes[-1][4:8] == (11).to_bytes(4, "big")  # ENHANCE_YOUR_CALM
        assert (await server.admission.Catalog(wire.CatalogRequest())).models


def test_a_go_client_may_ping_as_often_as_it_can() -> None:
    """grpc-go pings every 10 s at the most; the documented minimum is half of that."""
    assert listeners.SHORTEST_PING_MS == 5_000


@pytest.mark.parametrize(
    "sent", [b"", b"PRI * HTTP/2.0\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\0" * 5000]
)
async def test_a_connection_that_never_becomes_one_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(listeners, "HANDSHAKE_MS", 200)
    async with serving(tmp_path) as server, AsyncExitStack() as stack:
        frames = await connected(server, stack)
        frames.writer.write(sent)
        async with asyncio.timeout(10):
            async for _ in frames.received():
                pass
        assert (await server.admission.Catalog(wire.CatalogRequest())).models


KEPT, GONE = "kept", "gone"


async def test_a_stream_outlives_a_new_token_and_not_its_identity(tmp_path: Path) -> None:
    identities = [
        identity(KEPT, "collector", providers=["qwen"]),
        identity(GONE, "collector", providers=["qwen"]),
        identity("watcher", "viewer"),
        identity("demoted", "viewer"),
    ]
    async with serving(tmp_path, identities=identities) as server:
        kept = server.collector("a", metadata=bearer("kept-token"))
        gone = server.collector("b", metadata=bearer("gone-token"))
        await kept.connect()
        await gone.connect()
        flows: Any = flow_pb2_grpc.FlowServiceStub(server.channel)
        watches = [
            flows.WatchFlows(flow_pb2.WatchFlowsRequest(), metadata=bearer(f"{name}-token"))
            for name in ("watcher", "demoted")
        ]
        await until(lambda: server.application.guard.streams == 4)

        renewed = {**identities[0], "tokenSha256": identity("renewed", "viewer")["tokenSha256"]}
        demoted = {**identities[3], "namespace": "elsewhere"}
        server.write(CONFIG, identities=[renewed, identities[2], demoted])
        await server.running.reload()
        assert server.running.source.error == ""

        end = await gone.end()
        assert end is not None
        assert (end.code, end.reason) == ("UNAUTHENTICATED", "CREDENTIAL_INVALID")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await watches[1].read()
        assert Failure(raised.value).reason == "CREDENTIAL_INVALID"
        assert (await kept.send()).sequence == 1
        assert not watches[0].done()
        assert await ends(server.admission.Catalog(wire.CatalogRequest(), metadata=bearer("renewed-token"))) == "OK"
        old = await failure(server.admission.Catalog(wire.CatalogRequest(), metadata=bearer("kept-token")))
        assert old.reason == "CREDENTIAL_INVALID"


async def test_a_configuration_that_is_half_written_keeps_the_last_good_identities(tmp_path: Path) -> None:
    identities = [identity("edge", "gateway")]
    async with serving(tmp_path, identities=identities) as server:
        path = tmp_path / "tidegate.json"
        path.write_text(path.read_text()[:-40])
        await server.running.reload()
        assert server.running.source.error
        assert await ends(server.admission.Catalog(wire.CatalogRequest(), metadata=bearer("edge-token"))) == "OK"
        assert await ends(server.admission.Catalog(wire.CatalogRequest())) == "UNAUTHENTICATED"
