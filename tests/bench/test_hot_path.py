"""A guard against regressions without a stopwatch: how many calls of functions a pinned worker's answer takes.

Time on a busy machine is noise; the number of calls is the same everywhere and follows the time closely, because in
CPython a call is what costs. A ceiling leaves a tenth of room: a helper may come in, another layer around every
admission may not. Who needs more, says in the commit what it costs by `python -m tests.bench calls`.
"""

import json
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from tidegate.v1 import admission_pb2 as wire
from tidegate_server.config import ConfigurationSource
from tidegate_server.core.model import SECOND
from tidegate_server.rpc.access import ACCESS
from tidegate_server.rpc.admit_answers import batch_answer
from tidegate_server.rpc.fact_mapping import observation_of
from tidegate_server.rpc.guard import _CALLER
from tidegate_server.usecases.cold_wait import WaitBudget
from tidegate_server.usecases.identify import LOCAL_CALLER
from tidegate_server.wiring.application import Application
from tidegate_server.wiring.clock import SystemClock
from tidegate_server.wiring.run import start

from tests.bench import serving

ITEMS = 64
UNARY_CALLS = 130
"""118 when this was written: 60 of Python, 58 of C, what stands before every call included."""

BATCH_CALLS_PER_ITEM = 119
"""108 when this was written."""


class Context:
    """What gRPC tells of a call from this machine."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("user-agent", "grpc-go/1.85.0"),)

    def time_remaining(self) -> float:
        return 10.0


@pytest.fixture
async def application(tmp_path: Path) -> AsyncIterator[Application]:
    """A whole server's, with `ITEMS` workers bound."""
    settings = {**serving.CONFIG, "stateDirectory": str(tmp_path / "state")}
    (tmp_path / "tidegate.json").write_text(json.dumps(settings))
    async with AsyncExitStack() as stack:
        clock = SystemClock()
        running = await start(ConfigurationSource(tmp_path / "tidegate.json", {}), clock, stack)
        verbs = running.application.admission._verbs
        await verbs.report(LOCAL_CALLER, "bench", [observation_of(fact) for fact in serving.facts()], None)
        for n in range(1, ITEMS + 1):
            ask = running.application.admission._ask(request(n), Context())  # type: ignore[arg-type]
            await verbs.admit(ask, LOCAL_CALLER, WaitBudget(clock.monotonic() + SECOND))
        yield running.application


def request(n: int) -> wire.AdmitRequest:
    return wire.AdmitRequest(model="managed/routine", worker_id=f"worker-{n}", request_bytes=48_123)


def calls(coroutine: Coroutine[Any, Any, bytes]) -> tuple[int, bytes]:
    """How many calls of functions, Python's and C's, it takes; it must end without having waited for anything."""
    count = 0

    def event(_frame: object, kind: str, _argument: object) -> None:
        nonlocal count
        count += kind in ("call", "c_call")

    sys.setprofile(event)
    try:
        coroutine.send(None)
    except StopIteration as end:
        sys.setprofile(None)
        answer: bytes = end.value
        return count, answer
    finally:
        sys.setprofile(None)
    raise AssertionError("the answer to a bound worker waits for something")


def guarded(application: Application, method: str, behavior: Any, message: Any) -> Coroutine[Any, Any, bytes]:
    handler = application.guard._unary(behavior, method, ACCESS[method])
    served: Coroutine[Any, Any, bytes] = handler(message, Context())
    return served


async def test_a_pinned_admit_takes_few_calls_and_no_await(application: Application) -> None:
    method, behavior = "/tidegate.v1.AdmissionService/Admit", application.admission.admit_serialized
    calls(guarded(application, method, behavior, request(1)))  # the first one makes what is kept
    count, answer = calls(guarded(application, method, behavior, request(2)))
    assert wire.AdmitResponse.FromString(answer).headers["x-session-id"] == "worker-2"
    assert count <= UNARY_CALLS


async def test_an_item_of_a_batch_takes_fewer_still(application: Application) -> None:
    admission, context = application.admission, cast("Any", Context())

    items = [request(n) for n in range(1, ITEMS + 1)]

    async def answers() -> bytes:
        looked = [admission._first_look(item, context, LOCAL_CALLER) for item in items]
        return batch_answer(map(admission._batch_result, looked))

    _CALLER.set(LOCAL_CALLER)
    calls(answers())
    count, answer = calls(answers())
    assert len(wire.AdmitBatchResponse.FromString(answer).results) == ITEMS
    assert count / ITEMS <= BATCH_CALLS_PER_ITEM
