"""The configuration file as types (§2 of the contract): every setting with its meaning, unit and default.

The documentation and the JSON Schema are made from the descriptions. Lengths of time are read as whole nanoseconds.
Paths that are not absolute start at the directory that the server is started in.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from tidegate_server.config.base import OrEmpty, Section
from tidegate_server.config.routing import ManagedRouting, Provider
from tidegate_server.config.scalars import Amount, Count, CountOrZero, Currency, Duration, FilePath, Flag, Size, Text
from tidegate_server.config.serving import (
    Admin,
    DecisionLogSettings,
    HealthListener,
    Identity,
    Keys,
    Limits,
    Stores,
    Tls,
)
from tidegate_server.config.sources import Address, ApiKey, Endpoint, ListenAddress
from tidegate_server.core.model import SECOND

Listen = Annotated[
    tuple[ListenAddress, ...],
    BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]},
        mode="validation",
    ),
]


class FreshnessSettings(Section):
    """For how long a fact of each kind counts at the most; its own ttl may only shorten it."""

    health: Duration = Field(default=15 * SECOND, description="Limit for health facts. Default: 15s.")
    quota: Duration = Field(default=15 * 60 * SECOND, description="Limit for quota facts. Default: 15m.")
    balance: Duration = Field(default=5 * 60 * SECOND, description="Limit for balance facts. Default: 5m.")
    availability: Duration = Field(default=5 * 60 * SECOND, description="Limit for availability facts. Default: 5m.")


class FlowProfile(Section):
    """Limits for the flows of one profile; what is left out is taken from `flow`."""

    max_depth: Count | None = Field(default=None, description="Hops in one chain. Default: `flow.maxDepth`.")
    max_fan_out: Count | None = Field(default=None, description="Hops of the whole flow. Default: `flow.maxFanOut`.")
    max_tokens: Size | None = Field(default=None, description="Tokens of the whole flow. Default: `flow.maxTokens`.")
    timeout: Duration | None = Field(
        default=None, description="How long a flow may last, from its first hop. Default: `flow.timeout`."
    )


class FlowSettings(Section):
    """The flow guard's limits."""

    max_depth: Count = Field(default=5, description="Hops in one chain of a flow. Default: 5.")
    max_fan_out: Count = Field(default=20, description="Hops of a whole flow. Default: 20.")
    max_tokens: Size = Field(default=100_000, description="Tokens of a whole flow. Default: 100000.")
    timeout: Duration = Field(
        default=120 * SECOND, description="How long a flow may last, from its first hop. Default: 120s."
    )
    state_ttl: Duration = Field(
        default=300 * SECOND,
        description="How long a flow's state is kept after its last granted hop, if its time is over by then. "
        "Default: 300s.",
    )
    profiles: OrEmpty[Mapping[str, FlowProfile]] = Field(
        default={}, description="Other limits by the name that a hop gives as its profile. Default: none."
    )


class SelectionDeadlines(Section):
    """How long each stage of the agent selection may take, within the caller's deadline."""

    shortlist: Duration = Field(default=2 * SECOND, description="For the shortlist. Default: 2s.")
    rerank: Duration = Field(default=2 * SECOND, description="For the reranking. Default: 2s.")
    select: Duration = Field(default=10 * SECOND, description="For the selecting model's call. Default: 10s.")


class ChatEndpoint(Section):
    """An OpenAI-compatible chat endpoint that picks the agent."""

    base_url: Endpoint = Field(description="The API's base, as in `https://api.example.com/v1`.")
    api_key: ApiKey | None = Field(
        default=None, description="Where its key is: `env:NAME` or `file:PATH`. Left out: no key is sent."
    )
    model: Text = Field(default="gpt-4o", description="The model that picks. Default: gpt-4o.")


class EmbeddingsEndpoint(Section):
    """An OpenAI-compatible embeddings endpoint."""

    base_url: Endpoint = Field(description="The API's base, as in `https://api.example.com/v1`.")
    api_key: ApiKey | None = Field(
        default=None, description="Where its key is: `env:NAME` or `file:PATH`. Left out: no key is sent."
    )
    model: Text = Field(description="The embedding model.")


class SelectionSettings(Section):
    """The agent selection. No endpoint is assumed."""

    shortlist_threshold: Count = Field(
        default=15, description="Agents from which on a shortlist is made; fewer all go on. Default: 15."
    )
    shortlist_size: Count = Field(default=10, description="Agents that survive the shortlist. Default: 10.")
    max_history_messages: CountOrZero = Field(
        default=20, description="Newest messages of the session that the reranking reads; 0: none. Default: 20."
    )
    deadlines: OrEmpty[SelectionDeadlines] = Field(
        default=SelectionDeadlines(), description="How long each stage may take."
    )
    chat: ChatEndpoint | None = Field(
        default=None, description="Who picks the agent. Left out: the highest-ranked candidate is taken."
    )
    embeddings: EmbeddingsEndpoint | None = Field(
        default=None, description="Who embeds text. Left out: the model that ships with the extra `agents`."
    )


class Price(Section):
    """What a model's tokens cost, for the decision log."""

    currency: Currency = Field(description="Three capital letters, as in USD.")
    input_per_million: Amount = Field(description="Price of a million input tokens: a decimal in quotes.")
    output_per_million: Amount = Field(description="Price of a million output tokens: a decimal in quotes.")


class Configuration(Section):
    """A Tidegate server's configuration: one file, YAML or JSON, in which every key is optional."""

    listen: Listen = Field(
        default=(Address("127.0.0.1", 50051),),
        description="Where gRPC is served: `host:port`, `[IPv6]:port` or `unix:/path`; a list is allowed. "
        "An address that is not loopback needs `tls`, or `insecure: true`. Default: 127.0.0.1:50051.",
    )
    insecure: Flag = Field(
        default=False, description="Whether an address that is not loopback may do without TLS. Default: false."
    )
    reflection: Flag = Field(default=True, description="Whether gRPC reflection is served. Default: true.")
    drain_grace: Duration = Field(
        default=15 * SECOND, description="How long calls in work may go on after SIGTERM. Default: 15s."
    )
    state_directory: FilePath = Field(
        default=Path("state"),
        description="Owner-only directory for the embedded stores, made keys and `local.token`. Default: ./state.",
    )
    stores: Stores | None = Field(default=None, description="The shared mode's stores. Left out: embedded.")
    keys: OrEmpty[Keys] = Field(default=Keys(), description="Files with the server's own keys.")
    freshness: OrEmpty[FreshnessSettings] = Field(default=FreshnessSettings(), description="How long facts count.")
    cold_wait: Duration = Field(
        default=2_500_000_000,
        description="How long an admission waits for facts that are unknown or stale. Default: 2.5s.",
    )
    providers: OrEmpty[Mapping[str, Provider]] = Field(
        default={}, description="Engines and accounts by their alias. Default: none."
    )
    managed_routing: OrEmpty[ManagedRouting] = Field(default=ManagedRouting(), description="The managed routes.")
    flow: OrEmpty[FlowSettings] = Field(default=FlowSettings(), description="The flow guard's limits.")
    selection: OrEmpty[SelectionSettings] = Field(default=SelectionSettings(), description="The agent selection.")
    admin: OrEmpty[Admin] = Field(default=Admin(), description="The HTTP side: metrics, catalog, the page.")
    health: HealthListener | None = Field(default=None, description="A health-only listener. Left out: none.")
    tls: Tls | None = Field(default=None, description="Certificates of the gRPC side. Left out: plaintext.")
    identities: tuple[Identity, ...] = Field(
        default=(),
        description="Who may call. Left out: a loopback caller is a gateway of the namespace `default`, and "
        "`local.token` opens the rest.",
    )
    limits: OrEmpty[Limits] = Field(default=Limits(), description="How much the server takes on.")
    decision_log: OrEmpty[DecisionLogSettings] = Field(default=DecisionLogSettings(), description="The decision log.")
    prices: OrEmpty[Mapping[str, Price]] = Field(
        default={}, description="Prices by model, for the cost of selections. Default: none."
    )

    @property
    def is_shared(self) -> bool:
        """Whether this is the shared mode (§12): its stores are given."""
        return self.stores is not None
