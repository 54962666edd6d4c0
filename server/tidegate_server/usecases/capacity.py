"""Capacity: what is known now, and what it means for a route."""

from collections.abc import Sequence
from typing import NamedTuple

from tidegate_server.core.decide import evaluate_all
from tidegate_server.core.model import Fact, Instant, WallTime
from tidegate_server.core.policy import Policy, Route
from tidegate_server.core.verdicts import Evaluation
from tidegate_server.errors import NotFound
from tidegate_server.ports import Clock, FactStore
from tidegate_server.usecases.feeds import Feeds
from tidegate_server.usecases.policies import Policies


class CapacityNow(NamedTuple):
    """Facts with the instant at which their age is told, and each candidate's verdict for a worker without a pin."""

    facts: Sequence[Fact]
    route: Route | None
    evaluations: Sequence[Evaluation]
    passive: frozenset[str]
    now: Instant
    wall: WallTime


class Capacity:
    """Reads facts; decides nothing."""

    def __init__(self, policies: Policies, facts: FactStore, feeds: Feeds, clock: Clock) -> None:
        self._policies = policies
        self._facts = facts
        self._feeds = feeds
        self._clock = clock

    async def __call__(self, providers: Sequence[str], model: str) -> CapacityNow:
        """Raises NotFound for a provider or a model that is not configured."""
        policy = self._policies.current
        for provider in providers:
            if provider not in policy.providers:
                raise NotFound("provider", provider)
        if model and model not in policy.routes and model not in policy.models:
            raise NotFound("model", model)
        route = policy.routes.get(model)
        now = self._clock.monotonic()
        return CapacityNow(
            self._facts.facts(frozenset(providers)),
            route,
            evaluate_all(route, "", self._facts.groups(), now) if route is not None else (),
            self.covered_only_passively(policy),
            now,
            self._clock.wall(),
        )

    def covered_only_passively(self, policy: Policy) -> frozenset[str]:
        """Providers that nobody can be asked about: without traffic there are no facts, and so there is no traffic."""
        return frozenset(p for p in policy.providers if self._feeds.covered_only_passively(p))
