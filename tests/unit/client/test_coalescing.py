"""Admissions that ride together: what the server sees of them, and that none disturbs another."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio
from tidegate import AsyncClient, DeadlineExceeded, InvalidArgument, RetryPolicy, Unavailable
from tidegate.coalesce import MOST_RIDERS
from tidegate.v1 import admission_pb2, admission_pb2_grpc, types_pb2

ROUTE = "managed/routine"


class Server(admission_pb2_grpc.AdmissionServiceServicer):
    """Admits everybody. Workers named "bad" are errors, those named "slow" wait for `slow_may_go`."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.alone: list[str] = []
        self.slow_may_go = asyncio.Event()
        self.slow_has_come = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.down = False

    async def Admit(self, request: Any, context: Any) -> admission_pb2.AdmitResponse:
        self.alone.append(request.worker_id)
        if request.worker_id.startswith("bad"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "told alone")
        return self._response(request)

    async def AdmitBatch(self, request: Any, context: Any) -> admission_pb2.AdmitBatchResponse:
        self.batches.append([one.worker_id for one in request.requests])
        if self.down:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "down")
        try:
            if any(one.worker_id.startswith("slow") for one in request.requests):
                self.slow_has_come.set()
                await self.slow_may_go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return admission_pb2.AdmitBatchResponse(results=[self._result(one) for one in request.requests])

    def _result(self, request: Any) -> admission_pb2.AdmitBatchResult:
        if request.worker_id.startswith("bad"):
            return admission_pb2.AdmitBatchResult(error=types_pb2.ItemError(code=3, reason="INVALID_REQUEST"))
        return admission_pb2.AdmitBatchResult(response=self._response(request))

    def _response(self, request: Any) -> admission_pb2.AdmitResponse:
        return admission_pb2.AdmitResponse(verdict=types_pb2.VERDICT_ADMITTED, decision_id=f"of {request.worker_id}")

    async def _unused(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    Pin = Capacity = Catalog = ReportCapacity = _unused
    CapacityFeed = _unused  # type: ignore[assignment]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    servicer = Server()
    running = aio.server()
    admission_pb2_grpc.add_AdmissionServiceServicer_to_server(servicer, running)
    port = running.add_insecure_port("127.0.0.1:0")
    await running.start()
    servicer.address = f"127.0.0.1:{port}"  # type: ignore[attr-defined]
    yield servicer
    await running.stop(None)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncClient]:
    address: str = server.address  # type: ignore[attr-defined]
    async with AsyncClient(address, coalesce=True, retry=RetryPolicy(attempts=2, first=0.0)) as opened:
        yield opened


async def ask(client: AsyncClient, worker: str, **more: Any) -> str:
    return (await client.admit(ROUTE, worker, 1, **more)).response.decision_id


async def test_what_is_asked_at_once_leaves_as_one_batch_and_each_gets_its_own_answer(
    client: AsyncClient, server: Server
) -> None:
    workers = [f"w{n}" for n in range(100)]
    answers = await asyncio.gather(*(ask(client, worker) for worker in workers))
    assert answers == [f"of {worker}" for worker in workers]
    assert server.batches == [workers]
    assert server.alone == []


async def test_no_batch_has_more_than_a_server_takes(client: AsyncClient, server: Server) -> None:
    await asyncio.gather(*(ask(client, f"w{n}") for n in range(2 * MOST_RIDERS + 1)))
    assert sum(map(len, server.batches)) == 2 * MOST_RIDERS + 1
    assert max(map(len, server.batches)) == MOST_RIDERS


async def test_an_error_is_that_requests_alone_and_told_in_full(client: AsyncClient, server: Server) -> None:
    good, bad, other = await asyncio.gather(
        ask(client, "good"), ask(client, "bad"), ask(client, "other"), return_exceptions=True
    )
    assert (good, other) == ("of good", "of other")
    assert isinstance(bad, InvalidArgument)
    assert bad.message == "told alone"
    assert server.alone == ["bad"]


async def test_a_batch_that_found_nobody_is_asked_one_by_one_with_the_usual_retries(
    client: AsyncClient, server: Server
) -> None:
    server.down = True
    one, other = await asyncio.gather(ask(client, "a"), ask(client, "b"))
    assert (one, other) == ("of a", "of b")
    assert server.batches == [["a", "b"]]
    assert sorted(server.alone) == ["a", "b"]


async def test_a_deadline_is_its_own_calls(client: AsyncClient, server: Server) -> None:
    patient = asyncio.ensure_future(ask(client, "slow"))
    with pytest.raises(DeadlineExceeded):
        await ask(client, "hasty", timeout=0.05)
    assert [sorted(batch) for batch in server.batches] == [["hasty", "slow"]]
    server.slow_may_go.set()
    assert await patient == "of slow"


async def test_who_is_cancelled_leaves_the_others_to_their_answers(client: AsyncClient, server: Server) -> None:
    gone, stays = asyncio.ensure_future(ask(client, "gone")), asyncio.ensure_future(ask(client, "slow"))
    await server.slow_has_come.wait()
    gone.cancel()
    await asyncio.wait([gone])
    assert gone.cancelled()
    server.slow_may_go.set()
    assert await stays == "of slow"


async def test_who_is_cancelled_before_the_departure_does_not_ride(client: AsyncClient, server: Server) -> None:
    gone, stays = asyncio.ensure_future(ask(client, "gone")), asyncio.ensure_future(ask(client, "stays"))
    asyncio.get_running_loop().call_soon(gone.cancel)  # behind the two asks, before the departure that they set
    assert await stays == "of stays"
    assert server.batches == [["stays"]]


async def test_a_batch_that_nobody_waits_for_is_cancelled(client: AsyncClient, server: Server) -> None:
    asked = [asyncio.ensure_future(ask(client, worker)) for worker in ("slow", "too")]
    await server.slow_has_come.wait()
    for task in asked:
        task.cancel()
    await asyncio.wait_for(server.cancelled.wait(), 5)


async def test_a_bound_workers_request_does_not_wait_for_a_new_workers(client: AsyncClient, server: Server) -> None:
    await ask(client, "bound")
    waiting = [asyncio.ensure_future(ask(client, f"slow{n}")) for n in range(3)]
    await server.slow_has_come.wait()
    assert await ask(client, "bound") == "of bound"
    assert not any(task.done() for task in waiting)
    server.slow_may_go.set()
    await asyncio.gather(*waiting)


async def test_while_batches_are_out_a_request_waits_no_longer_than_the_timer(
    client: AsyncClient, server: Server
) -> None:
    waiting = []
    for n in range(4):  # each a batch of its own, none of which comes back
        server.slow_has_come.clear()
        waiting.append(asyncio.ensure_future(ask(client, f"slow{n}")))
        await asyncio.wait_for(server.slow_has_come.wait(), 5)
    server.slow_may_go.set()
    await asyncio.gather(*waiting)
    assert [len(batch) for batch in server.batches] == [1, 1, 1, 1]


async def test_a_closed_client_leaves_nobody_waiting(client: AsyncClient, server: Server) -> None:
    asked = asyncio.ensure_future(ask(client, "slow"))
    await server.slow_has_come.wait()
    await client.close()
    (outcome,) = await asyncio.wait_for(asyncio.gather(asked, return_exceptions=True), 5)
    assert isinstance(outcome, BaseException)


async def test_without_the_option_nothing_rides(server: Server) -> None:
    address: str = server.address  # type: ignore[attr-defined]
    async with AsyncClient(address) as plain:
        await asyncio.gather(ask(plain, "a"), ask(plain, "b"))
    assert server.batches == []
    assert len(server.alone) == 2


async def test_where_nobody_listens_each_is_told_so() -> None:
    async with AsyncClient("127.0.0.1:9", coalesce=True, retry=RetryPolicy(attempts=1)) as nobody:
        errors = await asyncio.gather(ask(nobody, "a"), ask(nobody, "b"), return_exceptions=True)
    assert [type(error) for error in errors] == [Unavailable, Unavailable]
