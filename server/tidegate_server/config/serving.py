"""Where and to whom the server answers, and what it keeps (§11 to §13 of the contract)."""

from typing import Annotated

from pydantic import Field

from tidegate_server.config.base import Section
from tidegate_server.config.scalars import DAY, Count, Digest, Duration, FilePath, Flag, Name, SpiffeId, Text, choice
from tidegate_server.config.sources import Address, DurableUrl, ListenAddress, LiveUrl
from tidegate_server.core.model import SECOND

Role = Annotated[str, choice({word: word for word in ("gateway", "collector", "operator", "viewer")})]

IDENTITY_KEYS = {"tokenSha256": "token_sha256", "spiffeId": "spiffe_id", "dns": "dns", "commonName": "common_name"}
"""How a caller shows who it is, by key and field; each identity has exactly one."""


class Stores(Section):
    """The shared mode's stores. Left out as a whole: embedded stores in `stateDirectory`."""

    durable: DurableUrl = Field(
        description="PostgreSQL for pins, decision log and agents: `postgresql://user:password@host:port/database`."
    )
    live: LiveUrl = Field(
        description="Valkey, or Redis 7 or newer, for facts and flow state: `valkey://` or `redis://`, with TLS "
        "`valkeys://` or `rediss://`."
    )


class Keys(Section):
    """Files with the server's own keys. Shared mode: required, and the same on every replica."""

    pins: FilePath | None = Field(
        default=None, description="The key under which worker ids are hashed. Left out: made in `stateDirectory`."
    )
    tracestate: tuple[FilePath, ...] = Field(
        default=(),
        description="The keys of the signed `tracestate` member; the first one signs, all verify. "
        "Left out: made in `stateDirectory`.",
    )


class Admin(Section):
    """The HTTP side: metrics, catalog, the page."""

    listen: ListenAddress = Field(
        default=Address("127.0.0.1", 9464), description="Address of the HTTP side. Default: 127.0.0.1:9464."
    )


class HealthListener(Section):
    """A plaintext listener that answers health checks and nothing else, for probes that speak no TLS."""

    listen: ListenAddress = Field(description="Address of the health-only listener.")


class Tls(Section):
    """Certificates of the gRPC side, PEM files; a changed file is read again without a restart."""

    certificate: FilePath = Field(description="The server's certificate chain.")
    key: FilePath = Field(description="The private key of `certificate`.")
    client_ca: FilePath | None = Field(
        default=None,
        description="Authorities that sign clients' certificates; with it every client must show one. "
        "Left out: none can.",
    )


class Identity(Section):
    """One caller: how it shows who it is, and what it may do."""

    name: Name = Field(description="What the caller is called in logs and answers; unique.")
    role: Role = Field(description="`gateway`, `collector`, `operator` or `viewer`.")
    token_sha256: Digest | None = Field(
        default=None,
        alias="tokenSha256",
        description="SHA-256 of the caller's bearer token, 64 hexadecimal digits. Exactly one of tokenSha256, "
        "spiffeId, dns, commonName is given.",
    )
    spiffe_id: SpiffeId | None = Field(default=None, description="The SPIFFE id of the caller's certificate.")
    dns: Name | None = Field(default=None, description="A DNS name of the caller's certificate.")
    common_name: Text | None = Field(default=None, description="The common name of the caller's certificate.")
    namespace: Name = Field(
        default="default", description="The namespace of the caller's pins and flows. Default: default."
    )
    start_flows: Flag = Field(
        default=False, description="Whether a hop without `caller_agent` may start a flow. Default: false."
    )
    providers: tuple[Name, ...] = Field(
        default=(), description="The providers that a collector may report on; for collectors required, else refused."
    )


class Limits(Section):
    """How much of everything the server takes on; beyond that it sheds calls, and never health."""

    max_message_bytes: Count = Field(
        default=8_388_608, description="Bytes of one message, in or out. Default: 8388608 (8 MiB)."
    )
    max_concurrent_calls: Count = Field(
        default=2000, description="Calls in work at a time; more are RESOURCE_EXHAUSTED. Default: 2000."
    )
    max_cold_waiters: Count = Field(
        default=1024, description="Admissions in the cold wait at a time; more are refused at once. Default: 1024."
    )
    max_feeds: Count = Field(default=256, description="Open capacity feeds. Default: 256.")
    default_deadline: Duration = Field(
        default=30 * SECOND, description="The deadline of a call that brings none, and the cap of one. Default: 30s."
    )


class DecisionLogSettings(Section):
    """The decision log."""

    queue: Count = Field(
        default=10_000, description="Entries that may wait to be written; more are counted and lost. Default: 10000."
    )
    retention: Duration = Field(default=30 * DAY, description="How long an entry is kept. Default: 30d.")
