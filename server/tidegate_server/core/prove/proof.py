"""Enumerating what a route can see, and checking every promise in every state of it."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tidegate_server.core.decide import Decision, decide
from tidegate_server.core.facts import group_all
from tidegate_server.core.model import CorruptPin, Request, StoredPin, Tier, Verdict
from tidegate_server.core.pins import new_pin
from tidegate_server.core.policy import Candidate, Route
from tidegate_server.core.prove.promises import Promise, World, broken_promise
from tidegate_server.core.prove.states import NOW, State, states_of
from tidegate_server.core.verdicts import Groups

MOST_COMBINATIONS = 20_000
"""Above this many combinations of states, candidates of one tier and one form are taken as interchangeable."""

Decide = Callable[[Route, Request, StoredPin | None, Groups, int], Decision]


class Counterexample(NamedTuple):
    """A state in which a promise does not hold."""

    promise: Promise
    world: World
    decision: Decision

    def describe(self) -> str:
        """The state and the answer, for people."""
        states = ", ".join(
            f"{candidate.name}: {state.name}"
            for candidate, state in zip(self.world.route.candidates, self.world.states, strict=True)
        )
        bound = self.decision.candidate.name if self.decision.candidate is not None else "nothing"
        return f"{states}; {self.world.pin_name}; {describe_request(self.world.request)} -> admitted on {bound}"


class RouteProof(NamedTuple):
    """What was found: how many states were looked at, what broke, who can win, and whether states were merged."""

    route: Route
    checked: int
    counterexample: Counterexample | None
    winners: frozenset[str]
    reduced: bool

    @property
    def never_wins(self) -> tuple[str, ...]:
        """Candidates that no state of a new worker can bind."""
        return tuple(c.name for c in self.route.candidates if c.name not in self.winners)


def prove_route(route: Route, decider: Decide = decide) -> RouteProof:
    """Check every promise in every state; stop at the first counterexample. `decider` is what is proved."""
    winners: set[str] = set()
    checked = 0
    combinations, reduced = _combinations(route)
    cases = list(_cases(route))
    for states in combinations:
        groups = group_all(fact for state in states for fact in state.facts)
        for pin_name, pin, request in cases:
            decision = decider(route, request, pin, groups, NOW)
            world = World(route, states, request, pin, pin_name)
            checked += 1
            broken = broken_promise(world, decision)
            if broken is not None:
                found = Counterexample(broken, world, decision)
                return RouteProof(route, checked, found, frozenset(winners), reduced)
            if pin is None and decision.verdict is Verdict.ADMITTED and decision.candidate is not None:
                winners.add(decision.candidate.name)
    return RouteProof(route, checked, None, frozenset(winners), reduced)


def _combinations(route: Route) -> tuple[Iterator[tuple[State, ...]], bool]:
    """All combinations of the candidates' states; where they are too many, up to the order of equal candidates.

    A state that shares its row of the contract's table with another is combined with the others' yes, no and unknown.
    """
    every = [states_of(candidate, route) for candidate in route.candidates]
    rows = [[state for state in states if not state.detail] for states in every]
    reduced = math.prod(map(len, rows)) > MOST_COMBINATIONS
    whole = _up_to_symmetry(route.candidates, rows) if reduced else itertools.product(*rows)
    return itertools.chain(whole, _details(every)), reduced


def _details(every: list[list[State]]) -> Iterator[tuple[State, ...]]:
    coarse = [_yes_no_unknown(states) for states in every]
    for place, states in enumerate(every):
        details = [state for state in states if state.detail]
        yield from itertools.product(*coarse[:place], details, *coarse[place + 1 :])


def _yes_no_unknown(states: list[State]) -> list[State]:
    yes = next(state for state in states if state.admits)
    no = next((state for state in states if state.confirms), states[-1])
    return [yes, no, states[0]]


def _up_to_symmetry(candidates: Sequence[Candidate], states: list[list[State]]) -> Iterator[tuple[State, ...]]:
    """Candidates of one form see the same states; of them only the multiset matters to the promises.

    Every multiset is enumerated in one order, and in the reverse one, so that each of two candidates is first once.
    """
    forms: dict[object, list[int]] = {}
    for place, candidate in enumerate(candidates):
        form = (candidate.tier, candidate.required_windows, candidate.saturation, candidate.reasoning_efforts)
        forms.setdefault((form, candidate.mapped_effort), []).append(place)
    choices = [itertools.combinations_with_replacement(range(len(states[p[0]])), len(p)) for p in forms.values()]
    for chosen in itertools.product(*choices):
        for order in (1, -1):
            picked: dict[int, State] = {}
            for places, indexes in zip(forms.values(), chosen, strict=True):
                picked.update((p, states[p][i]) for p, i in zip(places, indexes[::order], strict=True))
            yield tuple(picked[place] for place in range(len(candidates)))


def _cases(route: Route) -> Iterator[tuple[str, StoredPin | None, Request]]:
    """Every kind of request with every kind of pin that treats it in a way of its own."""
    pins = list(_pins(route))
    for request in _requests(route):
        yield "no pin", None, request
    for (name, pin), request in itertools.product(pins, _requests_of_pinned(route)):
        yield name, pin, request


def _requests(route: Route) -> Iterator[Request]:
    """Every kind of request that the policy treats in its own way."""
    limit = route.max_context_bytes
    yield from _requests_of_pinned(route)
    yield Request("w", 1, input_modalities=("image",))
    yield Request("w", 1, reasoning_effort="an effort that nobody supports")
    yield Request("w", 1, require_pin=True)
    yield Request("w", limit, provider_state="unknown")


def _requests_of_pinned(route: Route) -> Iterator[Request]:
    limit = route.max_context_bytes
    yield Request("w", limit)
    yield Request("w", limit + 1)
    yield Request("w", limit + 1, compaction=True)
    yield Request("w", 4 * limit + 1, compaction=True)
    for effort in _partial_efforts(route):
        yield Request("w", 1, reasoning_effort=effort)
    yield Request("w", 1, provider_state=route.candidates[0].provider)


def _partial_efforts(route: Route) -> list[str]:
    """One effort for each set of candidates that supports it, where that is not all of them."""
    supporters: dict[frozenset[str], str] = {}
    for effort in sorted({effort for c in route.candidates for effort in c.reasoning_efforts}):
        supporters.setdefault(frozenset(c.name for c in route.candidates if effort in c.reasoning_efforts), effort)
    return [effort for names, effort in supporters.items() if len(names) < len(route.candidates)]


def _pins(route: Route) -> Iterator[tuple[str, StoredPin]]:
    """Every kind of pin that a worker of this route can have.

    None on a paid model where the route allows none: it was bound under another policy, and says so by its fingerprint.
    """
    yield "a corrupt pin", CorruptPin(b"pin")
    possible = [c for c in route.candidates if c.tier is not Tier.PAID or route.allow_paid]
    for candidate in possible:
        yield f"pinned to {candidate.name}", new_pin(route, candidate, "default", b"pin", 0)
    for candidate in possible[:1]:
        pin = new_pin(route, candidate, "default", b"pin", 0)
        yield f"a retired pin on {candidate.name}", pin._replace(retired=True)
        yield f"pinned to {candidate.name} under another policy", pin._replace(policy_fingerprint="another")
        yield f"pinned to {candidate.name} as it was before", pin._replace(binding_fingerprint="another")


def describe_request(request: Request) -> str:
    """A request for people: what stands out of it."""
    told = [f"{request.request_bytes} bytes"]
    told += [f"effort {request.reasoning_effort}"] if request.reasoning_effort else []
    told += ["compaction"] if request.compaction else []
    told += [f"state of {request.provider_state}"] if request.provider_state else []
    told += ["require_pin"] if request.require_pin else []
    told += [" and ".join(request.input_modalities)] if request.input_modalities else []
    return ", ".join(told)
