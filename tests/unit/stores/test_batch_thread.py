"""Batches on a thread: all that wait go together, and everybody gets an answer."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
from tidegate_server.errors import StoreUnavailable
from tidegate_server.stores.batch_thread import BatchThread


class Gate:
    """Work that can be held up, so that a test decides what waits together."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    def run(self, jobs: Sequence[int]) -> Sequence[int | Exception]:
        """Doubles each job; -1 is told to its caller alone, -2 fails the whole batch."""
        self.entered.set()
        self.open.wait(10)
        self.batches.append(list(jobs))
        if -2 in jobs:
            raise ValueError("broken")
        return [KeyError(job) if job == -1 else job * 2 for job in jobs]


def thread(gate: Gate, batch_limit: int = 512) -> BatchThread[int, int]:
    return BatchThread("test", gate.run, failure=lambda: StoreUnavailable("tests"), batch_limit=batch_limit)


async def held(gate: Gate, worker: BatchThread[int, int]) -> "asyncio.Task[int]":
    """Send one job in and hold it up there."""
    gate.open.clear()
    first = asyncio.ensure_future(worker.submit(0))
    await asyncio.to_thread(gate.entered.wait, 10)
    return first


async def test_what_waits_while_a_batch_is_under_way_goes_together() -> None:
    gate = Gate()
    worker = thread(gate)
    first = await held(gate, worker)
    others = [asyncio.ensure_future(worker.submit(n)) for n in range(1, 200)]
    await asyncio.sleep(0)
    gate.open.set()
    assert await asyncio.gather(first, *others) == [n * 2 for n in range(200)]
    assert gate.batches == [[0], list(range(1, 200))]
    await worker.close()


async def test_a_batch_is_bounded() -> None:
    gate = Gate()
    worker = thread(gate, batch_limit=50)
    first = await held(gate, worker)
    others = [asyncio.ensure_future(worker.submit(n)) for n in range(1, 121)]
    await asyncio.sleep(0)
    gate.open.set()
    await asyncio.gather(first, *others)
    assert [len(batch) for batch in gate.batches] == [1, 50, 50, 20]
    await worker.close()


async def test_who_was_cancelled_before_its_batch_leaves_nothing() -> None:
    gate = Gate()
    worker = thread(gate)
    first = await held(gate, worker)
    kept, gone = (asyncio.ensure_future(worker.submit(n)) for n in (1, 2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    gate.open.set()
    assert (await first, await kept) == (0, 2)
    assert gate.batches == [[0], [1]]
    await worker.close()


async def test_who_is_cancelled_during_its_batch_does_not_disturb_the_others() -> None:
    gate = Gate()
    worker = thread(gate)
    first = await held(gate, worker)
    first.cancel()
    await asyncio.sleep(0)
    gate.open.set()
    assert await worker.submit(3) == 6
    assert gate.batches[0] == [0]
    await worker.close()


async def test_an_answer_that_is_an_error_goes_to_its_caller_alone() -> None:
    worker = thread(Gate())
    answers = await asyncio.gather(worker.submit(-1), worker.submit(5), return_exceptions=True)
    assert isinstance(answers[0], KeyError)
    assert answers[1] == 10
    await worker.close()


async def test_a_batch_that_fails_is_the_store_s_one_error_for_each_and_the_thread_lives_on() -> None:
    gate = Gate()
    worker = thread(gate)
    with pytest.raises(StoreUnavailable):
        await worker.submit(-2)
    assert await worker.submit(4) == 8
    await worker.close()


async def test_close_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    gate = Gate()
    worker = thread(gate)
    first = await held(gate, worker)
    accepted = asyncio.ensure_future(worker.submit(1))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(worker.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable):
        await worker.submit(2)
    gate.open.set()
    await closing
    assert (await first, await accepted) == (0, 2)
    await worker.close()


async def test_hooks_run_after_a_batch_and_when_nothing_comes() -> None:
    after, idle = threading.Event(), threading.Event()
    worker = BatchThread[int, int](
        "test", lambda jobs: jobs, failure=RuntimeError, after=after.set, idle=idle.set, idle_seconds=0.01
    )
    await worker.submit(1)
    assert await asyncio.to_thread(after.wait, 10)
    assert await asyncio.to_thread(idle.wait, 10)
    await worker.close()
