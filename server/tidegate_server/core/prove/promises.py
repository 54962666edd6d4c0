"""The promises of the product, each as a check of one answer in one known state."""

from collections.abc import Callable
from typing import NamedTuple

from tidegate_server.core.decide import COMPACTION_CAP, COMPACTION_FACTOR, Decision
from tidegate_server.core.model import CorruptPin, PinState, Request, StoredPin, Tier, Verdict
from tidegate_server.core.policy import Candidate, Route
from tidegate_server.core.prove.states import State


class World(NamedTuple):
    """One state of everything that a decision can see. `states` are the candidates', in the route's order."""

    route: Route
    states: tuple[State, ...]
    request: Request
    pin: StoredPin | None
    pin_name: str

    def state_of(self, candidate: Candidate) -> State:
        """The state of one of the route's candidates."""
        return self.states[self.route.candidates.index(candidate)]


Check = Callable[[World, Decision], bool]


class Promise(NamedTuple):
    """What may never be broken; `holds` is asked only of admissions."""

    name: str
    holds: Check


def paid_only_when_confirmed(world: World, decision: Decision) -> bool:
    """No paid admission without a confirmed blocker on every subscription, or the explicit preference."""
    route, candidate = world.route, decision.candidate
    if candidate is None or candidate.tier is not Tier.PAID:
        return True
    if not route.allow_paid:
        return False
    if route.prefer_paid_flash:
        return True
    subscriptions = [world.state_of(subscription) for subscription in route.subscriptions]
    return bool(subscriptions) and all(state.confirms & route.paid_on for state in subscriptions)


def only_on_fresh_yes(world: World, decision: Decision) -> bool:
    """Nothing is admitted on a stale, unknown or negative fact."""
    assert decision.candidate is not None
    state = world.state_of(decision.candidate)
    return state.admits_pinned if world.pin is not None else state.admits


def pinned_never_moves(world: World, decision: Decision) -> bool:
    """A worker with a pin is answered with that pin's binding, or refused."""
    if world.pin is None:
        return decision.pin_state is PinState.NEW
    if isinstance(world.pin, CorruptPin) or world.pin.retired:
        return False
    assert decision.candidate is not None
    bound = (decision.candidate.name, decision.candidate.binding_fingerprint)
    unchanged = world.pin.policy_fingerprint == world.route.fingerprint
    return (
        unchanged
        and decision.pin_state is PinState.EXISTING
        and bound == (world.pin.candidate, world.pin.binding_fingerprint)
    )


def compaction_never_binds(world: World, decision: Decision) -> bool:
    """A compaction is admitted on an existing pin only."""
    return not world.request.compaction or decision.pin_state is PinState.EXISTING


def bytes_never_exceeded(world: World, _: Decision) -> bool:
    """No request over the route's bytes is admitted, and no compaction over its allowance."""
    limit = world.route.max_context_bytes
    if world.request.compaction:
        limit = max(limit, min(COMPACTION_FACTOR * limit, COMPACTION_CAP))
    return world.request.request_bytes <= limit


def strong_never_local(world: World, decision: Decision) -> bool:
    """Strong and review routes never bind a local model."""
    assert decision.candidate is not None
    return world.route.purpose not in ("strong", "review") or decision.candidate.tier is not Tier.LOCAL


PROMISES = (
    Promise("no paid admission without a confirmed blocker on every subscription", paid_only_when_confirmed),
    Promise("nothing admitted on stale, unknown or negative facts", only_on_fresh_yes),
    Promise("a pinned worker never moves", pinned_never_moves),
    Promise("a compaction never binds", compaction_never_binds),
    Promise("bytes are never exceeded", bytes_never_exceeded),
    Promise("strong and review never bind local", strong_never_local),
)


def broken_promise(world: World, decision: Decision) -> Promise | None:
    """The first promise that this answer breaks."""
    if decision.verdict is not Verdict.ADMITTED:
        return None
    return next((promise for promise in PROMISES if not promise.holds(world, decision)), None)
