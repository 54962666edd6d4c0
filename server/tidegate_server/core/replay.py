"""What if: a logged admission, computed again under another policy."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from tidegate_server.core.admission_detail import AdmissionInputs, admission_inputs
from tidegate_server.core.decide import Decision, decide
from tidegate_server.core.facts import FactGroup, group_facts
from tidegate_server.core.freshness import stale_at
from tidegate_server.core.model import Tier, Verdict
from tidegate_server.core.policy import FreshnessLimits, Policy

NO_ROUTE = "NOT_FOUND"
"""What becomes of an admission whose route the other configuration does not have."""


class Replayed(NamedTuple):
    """One logged admission: what was answered then, and what would be now. An outcome is a candidate or a reason."""

    route: str
    before: str
    after: str
    paid_before: bool
    paid_after: bool

    @property
    def changed(self) -> bool:
        """Whether the answer is another one."""
        return self.before != self.after


class RouteChanges(NamedTuple):
    """The differences of one route. `changes` counts pairs of the answer before and after."""

    total: int
    changes: Mapping[tuple[str, str], int]
    paid_before: int
    paid_after: int


def replay(detail: Mapping[str, Any], policy: Policy) -> Replayed:
    """Compute a logged admission again, as it was and under `policy`."""
    inputs = admission_inputs(detail)
    then = decide(*inputs)
    name = inputs.route.name
    route = policy.routes.get(name)
    if route is None:
        return Replayed(name, outcome(then), NO_ROUTE, is_paid(then), False)
    now = decide(route, inputs.request, inputs.pin, relimited(inputs, policy.freshness), inputs.now, inputs.flow)
    return Replayed(name, outcome(then), outcome(now), is_paid(then), is_paid(now))


def outcome(decision: Decision) -> str:
    """A decision in one word: the candidate that was bound, or the reason of the refusal."""
    if decision.refusal is not None:
        return decision.refusal.reason.name
    assert decision.candidate is not None
    return decision.candidate.name


def is_paid(decision: Decision) -> bool:
    """Whether a decision spends money."""
    admitted = decision.verdict is Verdict.ADMITTED and decision.candidate is not None
    return admitted and decision.candidate is not None and decision.candidate.tier is Tier.PAID


def relimited(inputs: AdmissionInputs, limits: FreshnessLimits) -> Mapping[tuple[str, str], FactGroup]:
    """The facts as other limits would have had them: what was stale may be fresh, and the other way round."""
    return {
        subject: group_facts(f._replace(stale_at=stale_at(f.value, f.captured, f.ttl, limits)) for f in group.all)
        for subject, group in inputs.groups.items()
    }


class Tally:
    """Adds up replayed admissions per route."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._changes: dict[str, Counter[tuple[str, str]]] = {}
        self._paid: Counter[tuple[str, bool]] = Counter()

    def add(self, replayed: Replayed) -> None:
        """Count one admission."""
        self._totals[replayed.route] += 1
        self._paid[replayed.route, False] += replayed.paid_before
        self._paid[replayed.route, True] += replayed.paid_after
        if replayed.changed:
            self._changes.setdefault(replayed.route, Counter())[replayed.before, replayed.after] += 1

    def routes(self) -> Mapping[str, RouteChanges]:
        """The differences by route, in the order of their names."""
        return {
            route: RouteChanges(
                self._totals[route],
                dict(self._changes.get(route, Counter()).most_common()),
                self._paid[route, False],
                self._paid[route, True],
            )
            for route in sorted(self._totals)
        }
