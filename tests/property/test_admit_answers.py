"""The bytes that Admit and AdmitBatch answer with say what the plainly built messages say."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import types_pb2
from tidegate_server.core.decide import decide
from tidegate_server.core.model import SECOND, Health, HealthState, Pin, PinState, Request, Tier, Verdict
from tidegate_server.core.policy import Candidate, Route
from tidegate_server.rpc.admit_answers import AdmitAnswers, batch_answer
from tidegate_server.rpc.mapping import admit_response
from tidegate_server.stores.memory_facts import MemoryFactStore
from tidegate_server.testing import FakeClock, fact
from tidegate_server.usecases.admit import Admission, AdmitAsk

NOW = 1_000 * SECOND
EFFORTS = ("low", "high")


def route(*, affinity: bool, mapped: str) -> Route:
    candidate = Candidate(
        "qwen/next", "qwen", "next", Tier.LOCAL, "none", "b" * 64, EFFORTS, mapped, session_affinity=affinity
    )
    return Route("managed/routine", "routine", (candidate,), "f" * 64, 32768, 262144)


ROUTES = [route(affinity=affinity, mapped=mapped) for affinity in (False, True) for mapped in ("", "low")]
"""As a policy does, they live while their answers are made: an answer's ready part is known by its route's identity."""

WORKERS = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=256).filter(
    lambda worker: len(worker.encode()) <= 256
)
ADMISSIONS: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    route=st.sampled_from(ROUTES),
    worker=WORKERS,
    effort=st.sampled_from(("", *EFFORTS, "no such effort")),
    pinned=st.booleans(),
    explain=st.booleans(),
    size=st.sampled_from((1, 300_000)),
    healthy=st.booleans(),
    decision_id=st.text("0123456789abcdef", min_size=1, max_size=40),
)


async def groups(*, healthy: bool) -> Any:
    store = MemoryFactStore(FakeClock())
    state = HealthState.HEALTHY if healthy else HealthState.UNHEALTHY
    await store.put([fact("qwen", "", Health(state), now=NOW)])
    return store.groups()


async def admission(drawn: dict[str, Any]) -> Admission:
    route, worker, effort = drawn["route"], drawn["worker"], drawn["effort"]
    request = Request(worker, drawn["size"], effort, explain=drawn["explain"])
    (candidate,) = route.candidates
    pin = Pin(
        b"p" * 32, "default", route.name, candidate.name, candidate.provider, candidate.model, candidate.tier,
        candidate.credential_source, route.fingerprint, candidate.binding_fingerprint, 1,
    )  # fmt: skip
    decision = decide(route, request, pin if drawn["pinned"] else None, await groups(healthy=drawn["healthy"]), NOW)
    ask = AdmitAsk(route.name, worker, drawn["size"], reasoning_effort=effort, explain=drawn["explain"])
    return Admission(ask, decision, drawn["decision_id"], 1_795_000_000 * SECOND, route)


ANSWERS = AdmitAnswers()
"""One for all examples, so that they find each other's ready parts."""


@given(ADMISSIONS)
async def test_an_answer_says_what_the_message_says(drawn: dict[str, Any]) -> None:
    admitted = await admission(drawn)
    answered = ANSWERS.answer(admitted)
    assert wire.AdmitResponse.FromString(answered) == admit_response(admitted)
    assert len(answered) == admit_response(admitted).ByteSize(), "each field once: not every reader merges pieces"


@given(st.lists(ADMISSIONS | st.just(types_pb2.ItemError(code=3, reason="INVALID_REQUEST", message="m")), max_size=5))
async def test_so_does_the_answer_to_a_batch(drawn: Sequence[dict[str, Any] | types_pb2.ItemError]) -> None:
    items = [one if isinstance(one, types_pb2.ItemError) else await admission(one) for one in drawn]
    answered = batch_answer(
        one if isinstance(one, types_pb2.ItemError) else AdmitAnswers().answer(one) for one in items
    )
    assert wire.AdmitBatchResponse.FromString(answered) == wire.AdmitBatchResponse(
        results=[
            wire.AdmitBatchResult(error=one)
            if isinstance(one, types_pb2.ItemError)
            else wire.AdmitBatchResult(response=admit_response(one))
            for one in items
        ]
    )


async def test_the_examples_are_of_every_kind() -> None:
    usual = {"route": ROUTES[0], "worker": "w", "effort": "", "explain": False, "decision_id": "d"}
    made = [
        await admission({**usual, "pinned": pinned, "size": size, "healthy": True})
        for pinned in (False, True)
        for size in (1, 300_000)
    ]
    seen = {(one.decision.verdict, one.decision.pin_state) for one in made}
    assert {(Verdict.ADMITTED, PinState.NEW), (Verdict.ADMITTED, PinState.EXISTING)} < seen
    assert any(verdict is Verdict.REFUSED for verdict, _ in seen)
