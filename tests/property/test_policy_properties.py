"""The core against the policy written a second time, and the sentences of the contract that money depends on.

`HYPOTHESIS_PROFILE=thorough` tries many more worlds, other ones each time; without it the same worlds are tried always.
"""

import math
import os
import random
from collections.abc import Sequence
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate_server.core.decide import Decision, decide
from tidegate_server.core.facts import FactTable
from tidegate_server.core.model import (
    SECOND,
    Availability,
    AvailabilityState,
    Balance,
    CandidateVerdict,
    CorruptPin,
    Fact,
    Health,
    HealthState,
    Observation,
    ObservationResult,
    Pin,
    PinState,
    Quota,
    Request,
    StoredPin,
    Tier,
    Verdict,
)
from tidegate_server.core.observations import Receipt, Refused, receive
from tidegate_server.core.policy import (
    FreshnessLimits,
    KnownProvider,
    Route,
)

from tests.property import naive_facts, naive_policy
from tests.property.worlds import LIMIT, NOW, TIERS, VALUES, WALL, Choose, World, any_fact, any_world

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
BOUNDS = settings(
    max_examples=5_000 if THOROUGH else 150,
    derandomize=not THOROUGH,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

# --- strategies -----------------------------------------------------------------------------------------------------


def choosing(draw: st.DrawFn) -> Choose:
    """Let hypothesis choose."""
    return lambda options: draw(st.sampled_from(options))


@st.composite
def facts(draw: st.DrawFn, kind: str = "") -> Fact:
    """Any fact, or any of a kind."""
    return any_fact(choosing(draw), kind)


@st.composite
def worlds(draw: st.DrawFn, must_have: Sequence[Tier] = ()) -> World:
    """Any world."""
    return any_world(choosing(draw), must_have)


def of_one_account(fact: Fact) -> Fact:
    """The same fact where it meets many others."""
    return fact._replace(key=fact.key._replace(provider="gpu", model=""))


one_in_four = st.sampled_from([False, False, False, True])
requests = st.builds(
    Request,
    worker_id=st.just("w"),
    request_bytes=st.sampled_from([0, 0, 0, 100, 101, 400, 401, 4 * naive_policy.MIB, 4 * naive_policy.MIB + 1]),
    reasoning_effort=st.sampled_from(["", "", "low", "high", "max"]),
    compaction=one_in_four,
    provider_state=st.sampled_from(["", "", "", "unknown", "s1", "money"]),
    input_modalities=st.sampled_from([(), (), ("text",), ("text", "image")]),
    require_pin=one_in_four,
    explain=st.booleans(),
)
PLAIN = [Request("w", 0, effort, explain=explain) for effort in ("", "", "low", "high") for explain in (False, True)]
plain_requests = st.sampled_from(PLAIN)


@st.composite
def pins(draw: st.DrawFn, route: Route) -> StoredPin:
    """A pin of one of the route's candidates, now and then retired, corrupt, or of another policy or binding."""
    pin = naive_policy.pin_of(route, draw(st.sampled_from(route.candidates)))
    fault = draw(st.sampled_from(["", "", "", "", "", "retired", "corrupt", "policy", "binding", "gone"]))
    if fault == "corrupt":
        return CorruptPin(pin.pin_id)
    changes: dict[str, Pin] = {
        "": pin,
        "retired": pin._replace(retired=True),
        "policy": pin._replace(policy_fingerprint="another policy"),
        "binding": pin._replace(binding_fingerprint="another binding"),
        "gone": pin._replace(candidate="gone/m"),
    }
    return changes[fault]


# --- helpers --------------------------------------------------------------------------------------------------------


def table_of(arrivals: Sequence[Fact]) -> FactTable:
    table = FactTable()
    for fact in arrivals:
        table.put(fact)
    return table


def kept_by_key(arrivals: Sequence[Fact]) -> list[Fact]:
    return sorted(naive_facts.keep(arrivals)[0], key=lambda fact: fact.key)


def outline(decision: Decision) -> tuple[object, ...]:
    """A decision in the naive answer's words. Of a refusal's pin state the contract says nothing."""
    admitted = decision.verdict is Verdict.ADMITTED
    return (
        decision.verdict,
        decision.candidate.name if decision.candidate else "",
        decision.pin_state if admitted else PinState.NONE,
        decision.refusal.reason if decision.refusal else None,
        frozenset(decision.wait_for),
    )


def assert_agreement(world: World, request: Request, pin: StoredPin | None) -> None:
    """The core and the naive policy say the same, and judge each candidate the same."""
    decision = decide(world.route, request, pin, table_of(world.arrivals).groups, NOW)
    expected = naive_policy.answer(world.route, request, pin, kept_by_key(world.arrivals), NOW)
    assert outline(decision) == (
        expected.verdict,
        expected.candidate,
        expected.pin_state,
        expected.reason,
        expected.wait_for,
    )
    if expected.evaluations:
        told = [naive_policy.NaiveEvaluation(e.candidate.name, e.verdict, e.confirmed) for e in decision.evaluations]
        judged = list(expected.evaluations)
        assert told == (judged if request.explain or decision.refusal else judged[: len(told)])


# --- properties -----------------------------------------------------------------------------------------------------


def disagree(world: World, request: Request, pin: StoredPin | None) -> bool:
    """Whether the two policies differ."""
    try:
        assert_agreement(world, request, pin)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("part", range(40 if not THOROUGH else 2_000))
def test_many_worlds_get_the_answer_of_the_naive_policy(part: int) -> None:
    """The whole of §4.3 to §4.5 by sheer number; of a world that fails the fewest facts are shown."""
    rng = random.Random(part)
    for _ in range(100):
        world = any_world(rng.choice, rng.choice([(), [Tier.SUBSCRIPTION, Tier.PAID]]))
        request = rng.choice(PLAIN)
        for pin in (None, naive_policy.pin_of(world.route, rng.choice(world.route.candidates))):
            if not disagree(world, request, pin):
                continue
            arrivals = list(world.arrivals)
            for fact in world.arrivals:
                fewer = [other for other in arrivals if other is not fact]
                if disagree(world._replace(arrivals=fewer), request, pin):
                    arrivals = fewer
            assert_agreement(world._replace(arrivals=arrivals), request, pin)


@BOUNDS
@given(worlds(), plain_requests)
def test_a_new_worker_gets_the_answer_of_the_naive_policy(world: World, request: Request) -> None:
    """§4.1 steps 7 to 9, §4.2 to §4.4."""
    assert_agreement(world, request, None)


@BOUNDS
@given(st.data())
def test_any_request_gets_the_answer_of_the_naive_policy(data: st.DataObject) -> None:
    """§4.1 and §4.5, in their order."""
    world = data.draw(worlds())
    pin = data.draw(st.one_of(st.none(), pins(world.route)))
    assert_agreement(world, data.draw(requests), pin)


@BOUNDS
@given(st.data())
def test_a_pinned_worker_gets_the_answer_of_the_naive_policy(data: st.DataObject) -> None:
    """§4.5 behind its first checks, where the facts decide."""
    world = data.draw(worlds())
    pin = naive_policy.pin_of(world.route, data.draw(st.sampled_from(world.route.candidates)))
    assert_agreement(world, data.draw(plain_requests), pin)


@BOUNDS
@given(st.data())
def test_a_paid_pin_gets_the_answer_of_the_naive_policy(data: st.DataObject) -> None:
    """§4.5: the prerequisite of a paid pin."""
    world = data.draw(worlds([Tier.SUBSCRIPTION, Tier.PAID]))
    paid = data.draw(
        st.sampled_from([c for c in world.route.candidates if c.tier is Tier.PAID] or world.route.candidates)
    )
    assert_agreement(world, data.draw(plain_requests), naive_policy.pin_of(world.route, paid))


@BOUNDS
@given(st.data())
def test_a_pinned_worker_is_never_answered_with_another_binding(data: st.DataObject) -> None:
    """§4.5: "Never another provider, never a new pin"."""
    world = data.draw(worlds())
    pin = data.draw(pins(world.route))
    decision = decide(world.route, data.draw(requests), pin, table_of(world.arrivals).groups, NOW)
    if decision.verdict is Verdict.ADMITTED:
        assert isinstance(pin, Pin)
        assert decision.candidate is not None
        assert (decision.candidate.name, decision.candidate.provider) == (pin.candidate, pin.provider)
        assert decision.pin_state.name == "EXISTING"


@BOUNDS
@given(st.data())
def test_no_money_while_a_subscription_lacks_a_confirmed_blocker(data: st.DataObject) -> None:
    """§4.4, the default policy, with and without a pin; and an admission carries a proof for every subscription."""
    world = data.draw(worlds([Tier.SUBSCRIPTION, Tier.PAID]))
    route = world.route
    paid = [c for c in route.candidates if c.tier is Tier.PAID]
    pin = data.draw(st.sampled_from([None, *(naive_policy.pin_of(route, c) for c in paid)]))
    decision = decide(route, data.draw(plain_requests), pin, table_of(world.arrivals).groups, NOW)
    if route.prefer_paid_flash or decision.candidate is None or decision.candidate.tier is not Tier.PAID:
        return
    kept = kept_by_key(world.arrivals)
    proven = {proof for c in route.subscriptions for proof in naive_policy.proofs(route, c, kept, NOW)}
    shown = {
        naive_policy.Proof(e.candidate, e.block.blocker, e.block.fact.key) for e in decision.evidence if e.block.blocker
    }
    assert route.subscriptions
    assert {proof.candidate for proof in proven} == {c.name for c in route.subscriptions}
    assert {proof.candidate for proof in shown} == {c.name for c in route.subscriptions}
    assert shown <= proven


@BOUNDS
@given(worlds(), plain_requests)
def test_nothing_is_eligible_on_what_is_not_fresh(world: World, request: Request) -> None:
    """§1, §3.1: fresh, stale and unknown are different answers; only fresh facts admit."""
    route = world.route
    decision = decide(route, request._replace(explain=True), None, table_of(world.arrivals).groups, NOW)
    fresh = [fact for fact in kept_by_key(world.arrivals) if naive_facts.is_fresh(fact, NOW)]
    for evaluation in decision.evaluations:
        if evaluation.verdict is not CandidateVerdict.ELIGIBLE:
            continue
        candidate = evaluation.candidate
        said = [f.value for f in fresh if f.key.provider == candidate.provider and f.key.model in {"", candidate.model}]
        if candidate.tier is Tier.LOCAL:
            assert any(isinstance(v, Health) and v.state is HealthState.HEALTHY for v in said)
        elif candidate.tier is Tier.SUBSCRIPTION:
            windows = [v for v in said if isinstance(v, Quota) and _has_room(v, route.min_remaining_percent)]
            assert windows
            assert set(candidate.required_windows) <= {(v.window, v.scope) for v in windows}
        else:
            assert any(isinstance(v, Balance) and (v.unlimited or v.amount > 0) for v in said)


def _has_room(quota: Quota, reserve: float) -> bool:
    return quota.unlimited or quota.remaining_percent > reserve


@BOUNDS
@given(st.data())
def test_the_order_of_facts_changes_no_answer(data: st.DataObject) -> None:
    """§3.4: the newest capture counts, whatever arrived first.

    Left out are captures that tie in everything, and rows of no known state and no kind: one that replaces an AVAILABLE
    hides it from the rows that come later.
    """
    world = data.draw(worlds())
    hidden = Availability(AvailabilityState.UNKNOWN)
    arrivals = [fact._replace(observe_time=None) for fact in world.arrivals if fact.value != hidden]
    ranks = [(fact.key, fact.captured, fact.sequence) for fact in arrivals]
    arrivals = [fact for index, fact in enumerate(arrivals) if ranks[index] not in ranks[:index]]
    request = data.draw(plain_requests)
    first = decide(world.route, request, None, table_of(arrivals).groups, NOW)
    again = decide(world.route, request, None, table_of(data.draw(st.permutations(arrivals))).groups, NOW)
    assert first == again


@BOUNDS
@given(st.lists(facts(), max_size=12) | st.lists(facts("availability").map(of_one_account), max_size=12))
def test_the_table_keeps_what_the_naive_policy_keeps(arrivals: list[Fact]) -> None:
    """§3.4, also for ties, and what AVAILABLE clears by §3.6."""
    table = FactTable()
    results = [table.put(fact) for fact in arrivals]
    kept, expected = naive_facts.keep(arrivals)
    assert results == expected
    assert sorted(table.facts(), key=lambda fact: fact.key) == sorted(kept, key=lambda fact: fact.key)
    assert ObservationResult.REFUSED not in results


@BOUNDS
@given(worlds(), plain_requests)
def test_forgetting_changes_no_answer(world: World, request: Request) -> None:
    """§3.7: a fact that is forgotten counts as never seen, swept away or not."""
    table = table_of(world.arrivals)
    before = outline(decide(world.route, request, None, table.groups, NOW))
    table.forget(NOW)
    assert outline(decide(world.route, request, None, table.groups, NOW)) == before
    assert table.facts() == [fact for fact in kept_by_key(world.arrivals) if not naive_facts.is_forgotten(fact, NOW)]


odd_numbers = st.sampled_from([0.0, 50.0, 100.4, -5.0, math.nan, math.inf, -math.inf])
observations = st.builds(
    Observation,
    provider=st.sampled_from(["gpu", "s1", "money", "nobody"]),
    model=st.sampled_from(["", "m", "engine-m", "other"]),
    value=st.one_of(
        st.sampled_from([value for values in VALUES.values() for value in values]),
        st.builds(Quota, st.just("5h"), odd_numbers, st.booleans(), st.sampled_from(["", "chat"])),
        odd_numbers.filter(lambda number: not math.isfinite(number)).map(
            lambda n: Health(HealthState.HEALTHY, kv_usage=n)
        ),
        st.sampled_from(["NaN", "Infinity", "-Infinity", "1e3"]).map(lambda text: Balance("USD", Decimal(text))),
    ),
    observe_time=st.sampled_from([None, WALL - LIMIT, WALL, WALL + 5 * SECOND, WALL + 5 * SECOND + 1]),
    age=st.sampled_from([None, 0, 1, LIMIT]),
    ttl=st.sampled_from([None, 5 * SECOND, LIMIT, 900 * SECOND]),
    end_time=st.sampled_from([None, WALL - 1, WALL, WALL + 3600 * SECOND]),
    sequence=st.integers(0, 3),
)
scoped_observations = st.builds(
    Observation,
    provider=st.just("s1"),
    model=st.sampled_from(["", "engine-m"]),
    value=st.sampled_from([Quota("5h", 50.0, scope="model:engine-m"), Quota("5h", 50.0, scope="model:x")]),
    observe_time=st.none(),
    age=st.just(0),
    ttl=st.none(),
    end_time=st.none(),
    sequence=st.just(0),
)


@BOUNDS
@given(observations | scoped_observations)
def test_an_observation_becomes_the_fact_of_the_naive_policy(item: Observation) -> None:
    """§3.1 to §3.3, §3.5: accepted with the same times and value, or refused."""
    providers = {p: KnownProvider(TIERS[p], {"m": "m", "engine-m": "m"}) for p in ("gpu", "s1", "money")}
    limits = FreshnessLimits()
    received = receive(item, providers, limits, Receipt(NOW, WALL, collector="a"))
    expected = naive_facts.receive(item, NOW, WALL, limits, providers, "a")
    if isinstance(expected, str):
        assert isinstance(received, Refused), expected
        assert received.reason
    else:
        assert received == expected
