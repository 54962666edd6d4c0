"""Report: take observations in, over a feed or in one call (§3, §6 of the contract)."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from tidegate_server.core.facts import NO_FACTS
from tidegate_server.core.model import Caller, Fact, FactKey, Observation, ObservationResult
from tidegate_server.core.observations import MODEL_SCOPE, Receipt, Refused, receive
from tidegate_server.core.policy import Policy
from tidegate_server.errors import FieldViolation, InvalidRequest, ProviderNotAllowed
from tidegate_server.ports import Clock, FactFilter, FactStore
from tidegate_server.usecases.policies import Policies

MAX_ITEMS = 1000
"""The longest batch (§6)."""

ITEMS_AT_ONCE = 100
"""Items that are checked before other calls have their turn: a long batch keeps nobody waiting."""

MAX_FACTS = 10_000
"""Facts of one provider, over all its models: a hundred times what the largest account has. A collector that names new
windows and scopes without end fills no memory, and slows no decision beyond that."""


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
        policy, received = await self._receive_all(observations, caller, collector)
        facts = [fact for fact in received if isinstance(fact, Fact)]
        which = None if retraction is None else self._filter(policy, caller, collector, retraction)
        results = iter(await self._facts.put(facts, which) if facts or which is not None else ())
        return [
            Told(ObservationResult.REFUSED, item.reason) if isinstance(item, Refused) else Told(next(results))
            for item in received
        ]

    async def _receive_all(
        self, observations: Sequence[Observation], caller: Caller, collector: str
    ) -> tuple[Policy, list[Fact | Refused]]:
        """Every item under one policy and with one time of receipt, and the policy."""
        policy = self._policies.current
        receipt = Receipt(self._clock.monotonic(), self._clock.wall(), caller.name, collector)
        received: list[Fact | Refused] = []
        for start in range(0, len(observations), ITEMS_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            if policy is not self._policies.current:
                return await self._receive_all(observations, caller, collector)
            items = observations[start : start + ITEMS_AT_ONCE]
            received += [self._receive(item, policy, receipt, caller) for item in items]
        return policy, self._within_bound(received, policy)

    def _within_bound(self, received: list[Fact | Refused], policy: Policy) -> list[Fact | Refused]:
        """Refuse the facts with new keys of providers that have as many as they may."""
        groups = self._facts.groups()
        known: dict[str, set[FactKey]] = {}
        bounded: list[Fact | Refused] = []
        for item in received:
            if isinstance(item, Refused):
                bounded.append(item)
                continue
            provider = item.key.provider
            if provider not in known:
                models = {"", *policy.providers[provider].models.values()}
                known[provider] = {fact.key for model in models for fact in groups.get((provider, model), NO_FACTS).all}
            keys = known[provider]
            if item.key not in keys and len(keys) >= MAX_FACTS:
                bounded.append(Refused(f"provider: there are {MAX_FACTS} facts of it already; retract some first"))
                continue
            keys.add(item.key)
            bounded.append(item)
        return bounded

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
