"""Outlook: what a new worker would get now, on each route, and why. Nothing is stored, charged or asked for by it."""

from collections.abc import Sequence
from typing import NamedTuple

from tidegate_server.core.decide import Decision, decide
from tidegate_server.core.explain import rule_of
from tidegate_server.core.model import Instant, Request, WallTime
from tidegate_server.core.policy import Route
from tidegate_server.core.verdicts import Groups
from tidegate_server.ports import Clock, FactStore
from tidegate_server.usecases.policies import Policies


class RouteOutlook(NamedTuple):
    """The decision for a worker without a pin that sends a short text, with every candidate's verdict."""

    route: Route
    decision: Decision
    rule: str


class OutlookNow(NamedTuple):
    """Each route's outlook at one instant."""

    routes: Sequence[RouteOutlook]
    now: Instant
    wall: WallTime


class KnownNow(NamedTuple):
    """All facts at one instant, grouped as the decision has them."""

    groups: Groups
    now: Instant
    wall: WallTime


class Outlook:
    """Decides as Admit would, flows and cold waits aside."""

    def __init__(self, policies: Policies, facts: FactStore, clock: Clock) -> None:
        self._policies = policies
        self._facts = facts
        self._clock = clock

    def __call__(self) -> OutlookNow:
        """The outlook now, in the order of the configuration."""
        now, groups = self._clock.monotonic(), self._facts.groups()
        asked = Request(worker_id="", request_bytes=0, explain=True)
        routes = []
        for route in self._policies.current.routes.values():
            decision = decide(route, asked, None, groups, now)
            routes.append(RouteOutlook(route, decision, rule_of(decision, route)))
        return OutlookNow(routes, now, self._clock.wall())

    def known(self) -> KnownNow:
        """What it rests on: a copy that costs next to nothing, to be shown by another thread."""
        return KnownNow(dict(self._facts.groups()), self._clock.monotonic(), self._clock.wall())
