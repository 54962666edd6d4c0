"""A checked configuration, compiled for the decision: routes, candidates, providers, limits.

Nothing here is read from a file; `tidegate_server.config` builds it. A policy is immutable and is swapped whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate_server.core.model import SECOND, Blocker, Nanos, Tier

PAID_ON_DEFAULT = frozenset({Blocker.QUOTA_EXHAUSTED, Blocker.QUOTA_BELOW_RESERVE, Blocker.ACCOUNT_DISABLED})
"""Which confirmed blockers of every subscription authorize a paid model (§2, `paidOn`)."""

PAID_ON_ALLOWED = PAID_ON_DEFAULT | {Blocker.AUTH_FAILED, Blocker.PROVIDER_DOWN}


@dataclass(frozen=True, slots=True)
class Saturation:
    """Above which load a local engine takes no new workers. None: that figure never saturates."""

    max_waiting: int | None = None
    max_kv_usage: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One provider and model that a worker may be bound to.

    `name` is how the route spells it: `provider/model`, or the model's alias. `required_windows` are pairs of window
    and scope. `mapped_effort` is the route's `candidateReasoningEfforts` entry ("": none).
    """

    name: str
    provider: str
    model: str
    tier: Tier
    credential_source: str
    binding_fingerprint: str
    reasoning_efforts: tuple[str, ...] = ()
    mapped_effort: str = ""
    required_windows: tuple[tuple[str, str], ...] = ()
    saturation: Saturation | None = None
    session_affinity: bool = False
    account_key: tuple[str, str] = field(init=False)
    model_key: tuple[str, str] = field(init=False)

    def __post_init__(self) -> None:
        """Make the two keys under which this candidate's facts are found, once."""
        object.__setattr__(self, "account_key", (self.provider, ""))
        object.__setattr__(self, "model_key", (self.provider, self.model))


@dataclass(frozen=True, slots=True)
class Route:
    """A managed alias with its policy. `candidates` stand in the order of §4.2."""

    name: str
    purpose: str
    candidates: tuple[Candidate, ...]
    fingerprint: str
    context_window: int
    max_context_bytes: int
    min_remaining_percent: float = 2.0
    allow_paid: bool = False
    prefer_paid_flash: bool = False
    require_flow: bool = False
    paid_on: frozenset[Blocker] = PAID_ON_DEFAULT
    auto_compact_token_limit: int | None = None
    subscriptions: tuple[Candidate, ...] = field(init=False)
    by_name: Mapping[str, Candidate] = field(init=False)

    def __post_init__(self) -> None:
        """Put the candidates in order and make what every decision asks for, once."""
        ordered = tuple(sorted(self.candidates, key=lambda c: candidate_rank(c.tier, self.prefer_paid_flash)))
        object.__setattr__(self, "candidates", ordered)
        object.__setattr__(self, "subscriptions", tuple(c for c in ordered if c.tier is Tier.SUBSCRIPTION))
        object.__setattr__(self, "by_name", {c.name: c for c in ordered})


def candidate_rank(tier: Tier, prefer_paid_flash: bool) -> int:
    """§4.2: local, subscription, paid; with `preferPaidFlash` local, paid, subscription."""
    if not prefer_paid_flash:
        return int(tier)
    return {Tier.LOCAL: 1, Tier.PAID: 2, Tier.SUBSCRIPTION: 3}[tier]


@dataclass(frozen=True, slots=True)
class FreshnessLimits:
    """For how long a fact of each kind counts at the most; a sample's own ttl may only shorten it."""

    health: Nanos = 15 * SECOND
    quota: Nanos = 15 * 60 * SECOND
    balance: Nanos = 5 * 60 * SECOND
    availability: Nanos = 5 * 60 * SECOND


@dataclass(frozen=True, slots=True)
class KnownProvider:
    """What an observation may name: the provider's models by each name that its engine or vendor uses for them."""

    tier: Tier
    models: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One row of the catalog (§7). `metadata` is a fixed model's own, untouched."""

    id: str
    managed: bool
    context_window: int
    reasoning_efforts: tuple[str, ...]
    auto_compact_token_limit: int | None = None
    collaboration_contract: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole configuration, as far as decisions depend on it.

    `models` has every configured model under each name by which a caller may ask for it. `revision` is a fingerprint of
    the whole configuration and tells two configurations apart.
    """

    revision: str
    routes: Mapping[str, Route]
    models: Mapping[str, Candidate]
    providers: Mapping[str, KnownProvider]
    catalog: tuple[CatalogEntry, ...]
    freshness: FreshnessLimits = FreshnessLimits()
    cold_wait: Nanos = 2_500_000_000
