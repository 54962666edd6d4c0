"""Status: whether the server works, and what an operator should know."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tidegate_server.core.model import SECOND, Nanos, Tier
from tidegate_server.core.policy import Policy
from tidegate_server.usecases.feeds import Feeds
from tidegate_server.usecases.policies import Policies

FEATURES = ("managed-worker-routing-v1", "flow-guard-v1", "agent-selection-v1")
"""What a rollout asks for (§7)."""

OK = "ok"


class Dependency(NamedTuple):
    """Something that a service needs: whether it works now, and what it warns of."""

    healthy: Callable[[], bool]
    warnings: Callable[[], Sequence[str]] = tuple


class StatusNow(NamedTuple):
    """The answer of GetStatus."""

    ready: bool
    features: Sequence[str]
    revision: str
    configuration_error: str
    dependencies: Mapping[str, str]
    warnings: Sequence[str]


class Status:
    """Collects from the parts. `configuration_error` is the last reload's, "" when it was good."""

    def __init__(
        self,
        policies: Policies,
        feeds: Feeds,
        dependencies: Mapping[str, Dependency],
        configuration_error: Callable[[], str],
        is_ready: Callable[[], bool],
    ) -> None:
        self._policies = policies
        self._feeds = feeds
        self._dependencies = dependencies
        self._configuration_error = configuration_error
        self._is_ready = is_ready

    def __call__(self) -> StatusNow:
        """The state now; reads nothing from a store."""
        policy = self._policies.current
        own = [warning for dependency in self._dependencies.values() for warning in dependency.warnings()]
        states = {name: OK if d.healthy() else "does not work" for name, d in self._dependencies.items()}
        return StatusNow(
            self._is_ready(),
            FEATURES,
            policy.revision,
            self._configuration_error(),
            states,
            [*own, *feed_warnings(policy, self._feeds)],
        )


def feed_warnings(policy: Policy, feeds: Feeds) -> list[str]:
    """What the collectors that are connected cannot keep up (§6)."""
    warnings = [
        f"{provider}: only passive collectors cover it; without traffic its facts run out, and then there is no traffic"
        for provider in sorted(policy.providers)
        if feeds.covered_only_passively(provider)
    ]
    for session in feeds.sessions:
        for provider in sorted(p for p in policy.providers if session.covers(p)):
            limit = _needed_within(policy, provider)
            if session.interval > limit:
                warnings.append(
                    f"{provider}: the collector {session.collector} samples every {session.interval / SECOND:g} s, and "
                    f"its facts count for {limit / SECOND:g} s at the most"
                )
    return warnings


def _needed_within(policy: Policy, provider: str) -> Nanos:
    """How long the facts that a provider of this kind needs (§4.3) may count."""
    limits = policy.freshness
    match policy.providers[provider].tier:
        case Tier.LOCAL:
            return limits.health
        case Tier.SUBSCRIPTION:
            return limits.quota
        case Tier.PAID:
            return min(limits.balance, limits.availability)
