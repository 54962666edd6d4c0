"""Report: take observations in, over a feed or in one call (§3, §6 of the contract)."""

from collections.abc import Sequence
from typing import NamedTuple

from tidegate_server.core.model import Caller, Fact, Observation, ObservationResult
from tidegate_server.core.observations import MODEL_SCOPE, Receipt, Refused, receive
from tidegate_server.core.policy import Policy
from tidegate_server.errors import FieldViolation, InvalidRequest, ProviderNotAllowed
from tidegate_server.ports import Clock, FactFilter, FactStore
from tidegate_server.usecases.policies import Policies

MAX_ITEMS = 1000
"""The longest batch (§6)."""


class Told(NamedTuple):
    """What became of one observation; the reason names the field of a refused one."""

    result: ObservationResult
    reason: str = ""


class Retraction(NamedTuple):
    """What a collector takes back of what it gave; an empty field does not filter."""

    providers: tuple[str, ...] = ()
    window: str = ""
    scope: str = ""


class Report:
    """A batch becomes visible whole; one bad item is refused by itself."""

    def __init__(self, policies: Policies, facts: FactStore, clock: Clock) -> None:
        self._policies = policies
        self._facts = facts
        self._clock = clock

    async def __call__(
        self,
        caller: Caller,
        collector: str,
        observations: Sequence[Observation],
        retraction: Retraction | None = None,
        *,
        field: str = "observations",
    ) -> Sequence[Told]:
        """One result per observation, in order. `field` is the batch's name on the wire.

        Raises InvalidRequest when the batch is too long, ProviderNotAllowed when the retraction names a provider that
        the identity does not speak for, StoreUnavailable.
        """
        if len(observations) > MAX_ITEMS:
            raise InvalidRequest([FieldViolation(field, f"has more than {MAX_ITEMS} items")])
        policy = self._policies.current
        receipt = Receipt(self._clock.monotonic(), self._clock.wall(), caller.name, collector)
        received = [self._receive(item, policy, receipt, caller) for item in observations]
        facts = [fact for fact in received if isinstance(fact, Fact)]
        which = None if retraction is None else self._filter(policy, caller, collector, retraction)
        results = iter(await self._facts.put(facts, which) if facts or which is not None else ())
        return [
            Told(ObservationResult.REFUSED, item.reason) if isinstance(item, Refused) else Told(next(results))
            for item in received
        ]

    def _receive(self, item: Observation, policy: Policy, receipt: Receipt, caller: Caller) -> Fact | Refused:
        if caller.providers is not None and item.provider not in caller.providers:
            return Refused(f'provider: this identity does not speak for "{item.provider}"')
        return receive(item, policy.providers, policy.freshness, receipt)

    def _filter(self, policy: Policy, caller: Caller, collector: str, what: Retraction) -> FactFilter:
        for provider in what.providers:
            if caller.providers is not None and provider not in caller.providers:
                raise ProviderNotAllowed(provider)
        scope = what.scope
        if scope.startswith(MODEL_SCOPE):
            named = scope.removeprefix(MODEL_SCOPE)
            providers = what.providers or tuple(policy.providers)
            known = (policy.providers[p].models.get(named) for p in providers if p in policy.providers)
            scope = MODEL_SCOPE + next((model for model in known if model), named)
        return FactFilter(caller.name, collector, frozenset(what.providers), what.window, scope)
