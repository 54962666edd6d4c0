"""Concurrent admissions of one process ride together: one AdmitBatch in place of many Admits.

A busy gateway gets the rate of batches without a change in its code. What is asked in one turn of the event loop leaves
at its end. While a few batches are out, what comes meanwhile leaves when one of them is back, and waits for that no
longer than `LONGEST_WAIT`.

Whatever is not a decision is asked again alone, by a call of its own: so an error of one request is that request's
alone, with all that its status says and with the client's usual retries.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from itertools import zip_longest
from typing import TypeAlias

from tidegate.errors import DeadlineExceeded
from tidegate.v1 import admission_pb2, types_pb2

LONGEST_WAIT = 0.0002
"""Seconds for which a request may wait for others while `BATCHES_OUT` batches of its lane are on their way."""

BATCHES_OUT = 2
"""One batch is decided while the next one travels; a third would only be smaller."""

MOST_RIDERS = 256
"""§11 of the contract: the requests of one AdmitBatch."""

_WORKERS_KNOWN = 65_536

Send: TypeAlias = Callable[[admission_pb2.AdmitBatchRequest, float], Awaitable[admission_pb2.AdmitBatchResponse]]
"""AdmitBatch with a deadline in seconds."""

_LaneKey: TypeAlias = tuple[str, bool, bool]


class Coalescer:
    """Belongs to one event loop.

    A batch is answered when its last item is, which may take a cold wait. So requests ride in lanes: apart by model,
    those of workers that were admitted before apart from new ones, and those that enter a hop apart from the rest.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lanes: dict[_LaneKey, _Lane] = {}
        self._admitted: dict[tuple[str, str, str], None] = {}

    async def admit(
        self,
        request: admission_pb2.AdmitRequest,
        timeout: float,  # noqa: ASYNC109 - a gRPC deadline
    ) -> admission_pb2.AdmitResponse | None:
        """The decision within `timeout` seconds; None where there was none, and the request has to be asked alone.

        Raises DeadlineExceeded. A caller that is cancelled leaves nothing behind; when all riders of a batch have been,
        the batch is cancelled, too.
        """
        worker = (request.model, request.tenant, request.worker_id)
        key = (request.model, worker in self._admitted, request.HasField("hop"))
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(self._send, lambda: self._lanes.pop(key, None))
        rider = _Rider(request, timeout)
        lane.add(rider)
        try:
            response = await rider.answer
        finally:
            rider.leave()
        if response is not None and response.verdict == types_pb2.VERDICT_ADMITTED and not request.dry_run:
            if len(self._admitted) >= _WORKERS_KNOWN:
                self._admitted.clear()  # they are known again after one ride each
            self._admitted[worker] = None
        return response


class _Rider:
    """One request, the answer that its caller waits for, and the batch that it left with."""

    __slots__ = ("_alarm", "answer", "batch", "deadline", "request")

    def __init__(self, request: admission_pb2.AdmitRequest, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        self.request = request
        self.deadline = loop.time() + timeout
        self.answer: asyncio.Future[admission_pb2.AdmitResponse | None] = loop.create_future()
        self.batch: _Batch | None = None
        self._alarm = loop.call_at(self.deadline, self._expire)

    def _expire(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(DeadlineExceeded("the deadline ran out before the server answered"))

    def leave(self) -> None:
        """The caller waits no longer."""
        self._alarm.cancel()
        if self.batch is not None:
            self.batch.left()


class _Batch:
    """Riders that left together."""

    def __init__(self, riders: Sequence[_Rider], send: Send) -> None:
        self._riders = riders
        for rider in riders:
            rider.batch = self
        self.task = asyncio.ensure_future(self._ride(send))

    def left(self) -> None:
        """A rider waits no longer; without riders there is no ride."""
        if not self.task.done() and all(rider.answer.done() for rider in self._riders):
            self.task.cancel()

    async def _ride(self, send: Send) -> None:
        requests = admission_pb2.AdmitBatchRequest(requests=[rider.request for rider in self._riders])
        longest = max(rider.deadline for rider in self._riders) - asyncio.get_running_loop().time()
        results: Sequence[admission_pb2.AdmitBatchResult] = ()
        try:
            with contextlib.suppress(Exception):  # each rider asks alone, and its own call tells it what is wrong
                results = (await send(requests, max(0.0, longest))).results
        finally:  # also where the client is closed, which cancels the call
            for rider, result in zip_longest(self._riders, results[: len(self._riders)]):
                if not rider.answer.done():
                    is_decided = result is not None and result.HasField("response")
                    rider.answer.set_result(result.response if is_decided else None)


class _Lane:
    """Requests that share a fate, and so their batches."""

    def __init__(self, send: Send, over: Callable[[], object]) -> None:
        self._send = send
        self._over = over
        self._waiting: list[_Rider] = []
        self._out: set[asyncio.Task[None]] = set()
        self._departure: asyncio.Handle | None = None

    def add(self, rider: _Rider) -> None:
        self._waiting.append(rider)
        if len(self._waiting) >= MOST_RIDERS:
            self._depart()
        elif self._departure is None:
            loop = asyncio.get_running_loop()
            at_once = len(self._out) < BATCHES_OUT
            self._departure = loop.call_soon(self._depart) if at_once else loop.call_later(LONGEST_WAIT, self._depart)

    def _depart(self) -> None:
        if self._departure is not None:
            self._departure.cancel()
            self._departure = None
        riders = [rider for rider in self._waiting if not rider.answer.done()]
        self._waiting = []
        if riders:
            task = _Batch(riders, self._send).task
            self._out.add(task)
            task.add_done_callback(self._arrived)

    def _arrived(self, task: "asyncio.Task[None]") -> None:
        self._out.discard(task)
        if self._waiting:
            self._depart()
        elif not self._out:
            self._over()
