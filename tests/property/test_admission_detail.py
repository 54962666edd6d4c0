"""What the log holds of an admission is enough to compute it again (§10): the same inputs, the same answer."""

import json
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_server.core.admission_detail import DetailWriter, admission_detail, admission_inputs, recompute
from tidegate_server.core.decide import Decision, decide
from tidegate_server.core.facts import FactTable, fact_key
from tidegate_server.core.model import (
    NEVER,
    SECOND,
    Availability,
    AvailabilityState,
    Balance,
    Blocker,
    CorruptPin,
    Fact,
    Health,
    HealthState,
    Pin,
    Quota,
    RefusalReason,
    Request,
    StoredPin,
    Tier,
    Value,
)
from tidegate_server.core.policy import PAID_ON_ALLOWED, Candidate, Route, Saturation
from tidegate_server.core.refusals import Refusal

NOW = 10_000 * SECOND
PROVIDERS = {"qwen": Tier.LOCAL, "claude": Tier.SUBSCRIPTION, "codex": Tier.SUBSCRIPTION, "openrouter": Tier.PAID}
WORKER = "thread-of-a-person"

efforts = st.sampled_from(["", "low", "high"])
saturations = st.none() | st.builds(
    Saturation, st.none() | st.integers(0, 5), st.none() | st.floats(0, 1, allow_nan=False)
)


@st.composite
def candidates(draw: st.DrawFn) -> Candidate:
    provider = draw(st.sampled_from(sorted(PROVIDERS)))
    model = draw(st.sampled_from(["m1", "m2"]))
    return Candidate(
        f"{provider}/{model}",
        provider,
        model,
        PROVIDERS[provider],
        "none",
        "b" * 8,
        draw(st.sampled_from([(), ("low",), ("low", "high")])),
        draw(efforts),
        draw(st.sampled_from([(), (("5h", ""),), (("1mo", "premium"), ("7d", ""))])),
        draw(saturations),
        draw(st.booleans()),
    )


routes = st.builds(
    Route,
    name=st.just("managed/routine"),
    purpose=st.just("routine"),
    candidates=st.lists(candidates(), min_size=1, max_size=4, unique_by=lambda c: c.name).map(tuple),
    fingerprint=st.just("f1"),
    context_window=st.just(32768),
    max_context_bytes=st.integers(1, 1000),
    min_remaining_percent=st.floats(0, 99, allow_nan=False),
    allow_paid=st.booleans(),
    prefer_paid_flash=st.booleans(),
    paid_on=st.frozensets(st.sampled_from(sorted(PAID_ON_ALLOWED))),
)
values: st.SearchStrategy[Value] = st.one_of(
    st.builds(
        Health,
        st.sampled_from(HealthState),
        st.none() | st.integers(0, 9),
        st.none() | st.integers(0, 9),
        st.none() | st.floats(0, 1),
    ),
    st.builds(
        Quota, st.sampled_from(["5h", "7d"]), st.sampled_from([0.0, 1.5, 50.0]) | st.floats(0, 100), st.booleans()
    ),
    st.builds(
        Balance,
        st.sampled_from(["USD", "EUR"]),
        st.decimals(-1, 100, allow_nan=False, places=4) | st.just(Decimal(0)),
        st.booleans(),
        st.sampled_from([None, True, False]),
        st.sampled_from(["", "team"]),
    ),
    st.builds(Availability, st.sampled_from(AvailabilityState), st.sampled_from(list(Blocker)[:7])),
)


@st.composite
def facts(draw: st.DrawFn) -> Fact:
    provider = draw(st.sampled_from(sorted(PROVIDERS)))
    model = draw(st.sampled_from(["", "m1", "m2"]))
    value = draw(values)
    captured = NOW - draw(st.integers(0, 400)) * SECOND
    return Fact(
        fact_key(provider, model, value),
        value,
        captured,
        captured + draw(st.sampled_from([15, 300])) * SECOND,
        draw(st.just(NEVER) | st.integers(-10, 10).map(lambda s: NOW + s * SECOND)),
        observe_time=draw(st.none() | st.integers(0, 1 << 62)),
        sequence=draw(st.integers(0, 3)),
        collector=draw(st.sampled_from(["", "c1"])),
    )


requests = st.builds(
    Request,
    worker_id=st.just(WORKER),
    request_bytes=st.integers(0, 4000),
    reasoning_effort=efforts,
    compaction=st.booleans(),
    provider_state=st.sampled_from(["", "unknown", "claude"]),
    input_modalities=st.sampled_from([(), ("text",), ("text", "image")]),
    require_pin=st.booleans(),
    explain=st.booleans(),
)
flows = st.none() | st.builds(Refusal, st.just(RefusalReason.FLOW_TIMEOUT), st.just("too late"), until=st.none())


@st.composite
def pins(draw: st.DrawFn, route: Route) -> StoredPin | None:
    kind = draw(st.sampled_from(["none", "pin", "pin", "corrupt"]))
    if kind == "none":
        return None
    if kind == "corrupt":
        return CorruptPin(b"\x01" * 32)
    bound = draw(st.sampled_from(route.candidates))
    fingerprint = draw(st.sampled_from(["f1", "f1", "f2"]))
    retired = draw(st.sampled_from([False, False, True]))
    return Pin(
        b"\xff" * 32,
        "default",
        route.name,
        bound.name,
        bound.provider,
        bound.model,
        bound.tier,
        "none",
        fingerprint,
        bound.binding_fingerprint,
        17,
        retired,
    )


def within_route(decision: Decision, route: Route) -> Decision:
    """The same with the facts of this route's candidates only: of others nothing is written down."""
    subjects = {key for c in route.candidates for key in (c.account_key, c.model_key)}
    return decision._replace(groups={s: group for s, group in decision.groups.items() if s in subjects})


@settings(max_examples=400, deadline=None)
@given(st.data(), routes, requests, st.lists(facts(), max_size=14), flows)
def test_a_logged_admission_gives_the_same_answer(
    data: st.DataObject, route: Route, request: Request, known: list[Fact], flow: Refusal | None
) -> None:
    table = FactTable()
    for fact in known:
        table.put(fact)
    pin = data.draw(pins(route))
    decision = decide(route, request, pin, table.groups, NOW, flow)

    written = json.dumps(admission_detail(route, request, pin, decision, flow))

    assert recompute(json.loads(written)) == within_route(decision, route)
    rebuilt = admission_inputs(json.loads(written))
    assert (rebuilt.route, rebuilt.pin, rebuilt.flow) == (route, pin, flow)
    assert rebuilt.request == request._replace(worker_id="")
    assert WORKER not in written


@settings(max_examples=100, deadline=None)
@given(st.data(), routes, requests, st.lists(facts(), max_size=14))
def test_the_fast_writer_says_the_same(data: st.DataObject, route: Route, request: Request, known: list[Fact]) -> None:
    table = FactTable()
    for fact in known:
        table.put(fact)
    pin = data.draw(pins(route))
    writer = DetailWriter()
    for now in (NOW, NOW + 7 * SECOND):
        decision = decide(route, request, pin, table.groups, now)
        text = writer.text(route, request, pin, decision)
        assert json.loads(text) == json.loads(json.dumps(admission_detail(route, request, pin, decision)))
        assert recompute(json.loads(text)) == within_route(decision, route)


def test_a_detail_tells_ages_and_ends_from_the_decision_on() -> None:
    route = Route("r", "routine", (Candidate("qwen/m1", "qwen", "m1", Tier.LOCAL, "none", "b"),), "f", 1, 1)
    table = FactTable()
    health = Health(HealthState.HEALTHY)
    table.put(Fact(fact_key("qwen", "m1", health), health, NOW - 3, NOW + 12, NOW + 40))
    decision = decide(route, Request("w", 1), None, table.groups, NOW)
    (fact,) = admission_detail(route, Request("w", 1), None, decision)["facts"]
    assert (fact["age"], fact["fresh_for"], fact["ends_in"]) == (3, 12, 40)
