"""ClearBlockers: an operator lifts what a collector reported (§3.6 of the contract)."""

from tidegate_server.core.facts import fact_key, kind_of_row
from tidegate_server.core.freshness import stale_at
from tidegate_server.core.model import Availability, AvailabilityState, Blocker, Caller, Fact
from tidegate_server.core.policy import Policy
from tidegate_server.errors import FieldViolation, InvalidRequest, NotFound
from tidegate_server.ports import Clock, FactStore
from tidegate_server.usecases.policies import Policies

COLLECTOR = "operator"
"""Who is shown as the source of what an operator says."""


class ClearBlockers:
    """Says AVAILABLE of each kind in the operator's name, as of now.

    So the rules of facts do the rest: a row that was captured before, and is sent again by a collector that reconnects,
    is older and stays away; a collector that sees the blocker after that reports it again.
    """

    def __init__(self, policies: Policies, facts: FactStore, clock: Clock) -> None:
        self._policies = policies
        self._facts = facts
        self._clock = clock

    async def __call__(self, provider: str, model: str, blocker: Blocker, why: str, caller: Caller) -> int:
        """How many rows were lifted. Raises NotFound, InvalidRequest without a reason, StoreUnavailable."""
        policy = self._policies.current
        known = policy.providers.get(provider)
        if known is None:
            raise NotFound("provider", provider)
        if model and model not in known.models:
            raise NotFound("model", model)
        if not why.strip():
            raise InvalidRequest([FieldViolation("reason", "is missing; it is kept in the log")])
        subject = (provider, known.models.get(model, ""))
        rows = {kind_of_row(fact) for fact in self._facts.facts(frozenset({provider})) if fact.key[:2] == subject}
        lifted = {kind for kind in rows if kind is not None and blocker in (Blocker.NONE, kind)}
        said = lifted | ({blocker} if blocker else set())
        await self._facts.put([self._available(*subject, kind, policy, caller) for kind in sorted(said)])
        return len(lifted)

    def _available(self, provider: str, model: str, kind: Blocker, policy: Policy, caller: Caller) -> Fact:
        value = Availability(AvailabilityState.AVAILABLE, kind)
        now = self._clock.monotonic()
        return Fact(
            key=fact_key(provider, model, value),
            value=value,
            captured=now,
            stale_at=stale_at(value, now, None, policy.freshness),
            observe_time=self._clock.wall(),
            collector=COLLECTOR,
            identity=caller.name,
        )
