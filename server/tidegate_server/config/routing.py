"""Providers, models and managed routes: the settings that a decision depends on (§2 to §4 of the contract)."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, PlainSerializer

from tidegate_server.config.base import OrEmpty, Section
from tidegate_server.config.scalars import (
    AnyText,
    CountOrZero,
    Flag,
    Fraction,
    Kind,
    Name,
    PaidOn,
    Percent,
    Size,
    Window,
    choice,
)
from tidegate_server.config.sources import Credential
from tidegate_server.core.policy import PAID_ON_DEFAULT

PAID_MODELS_DEFAULT = ("deepseek/deepseek-v4-flash", "deepseek-v4-flash")

Purpose = Annotated[str, choice({word: word for word in ("routine", "strong", "review")})]
BlockerSet = Annotated[frozenset[PaidOn], PlainSerializer(lambda blockers: sorted(b.name for b in blockers))]


class SaturationSettings(Section):
    """From which load on a local engine takes no new workers."""

    max_waiting: CountOrZero | None = Field(
        default=None,
        description="Requests that may wait in the engine's queue; more is saturated. Left out: the queue never is.",
    )
    max_kv_usage: Fraction | None = Field(
        default=None,
        description="Share of the key-value cache that may be in use, 0 to 1; more is saturated. Left out: never.",
    )


class Model(Section):
    """One model of a provider."""

    context_window: Size = Field(
        description="Tokens of input and output together that the model takes. Required: no other figure, an output "
        "limit least of all, can stand in for it."
    )
    alias: Name | None = Field(
        default=None, description="A short name for `provider/model`, the only one of its kind. Left out: none."
    )
    reasoning_efforts: tuple[Name, ...] = Field(
        default=(), description="The reasoning efforts that the model supports, weakest first. Default: none."
    )
    engine_names: tuple[Name, ...] = Field(
        default=(),
        description="Other names by which the engine or vendor reports this model in observations. Default: none.",
    )
    metadata: OrEmpty[Mapping[str, AnyText]] = Field(
        default={}, description="Text by key, handed out with the catalog row of the model untouched. Default: none."
    )


class Provider(Section):
    """One engine or account that serves models. Its key is the provider's alias."""

    kind: Kind = Field(description="The tier: `local`, `subscription` or `paid`.")
    credential: Credential = Field(
        default="none",
        description="The source of the credential that the gateway uses, never its contents: `none`, `env:NAME`, "
        "`file:PATH`, `keyring:NAME`, or a login and its label as in `claude-oauth:primary`. Nothing reads it; a pin "
        "binds to it. Default: `none`.",
    )
    session_affinity: Flag = Field(
        default=False,
        description="Whether the worker's id goes upstream as `x-session-id`, for a router that keeps conversations "
        "together. Default: false.",
    )
    saturation: SaturationSettings | None = Field(
        default=None, description="When a local engine counts as busy. Left out: never."
    )
    required_windows: tuple[Window, ...] = Field(
        default=(),
        description="Quota windows that must each be fresh and above the reserve: `5h`, or `1mo/premium_interactions` "
        "for a window of one scope. Default: each window seen, at least one.",
    )
    models: OrEmpty[Mapping[str, Model]] = Field(
        default={}, description="The provider's models by the name that the upstream knows them by. Default: none."
    )


class RouteSettings(Section):
    """A managed alias with its policy. All of this section, and nothing else, is in the policy fingerprint."""

    purpose: Purpose = Field(
        description="`routine`; or `strong` or `review`, which take neither local candidates nor `preferPaidFlash`."
    )
    candidates: tuple[Name, ...] = Field(
        description="What a worker may be bound to: `provider/model`, or a model's alias. The order counts within a "
        "tier; tiers are ordered by the product."
    )
    context_window: Size = Field(
        description="Tokens that the route advertises; no candidate may have less. A ceiling, not a promise at full "
        "concurrency."
    )
    max_context_bytes: Size = Field(description="Bytes that a caller's serialized request may have at most.")
    min_remaining_percent: Percent = Field(
        default=2.0,
        description="The reserve: percent of each quota window that is kept free, at least 0 and less than 100. "
        "Default: 2.",
    )
    allow_paid: Flag = Field(default=False, description="Whether paid candidates may be bound at all. Default: false.")
    prefer_paid_flash: Flag = Field(
        default=False,
        description="Whether paid candidates come before subscriptions, quota left or not; needs `allowPaid`. "
        "Default: false.",
    )
    require_flow: Flag = Field(
        default=False, description="Whether every admission must come with a flow or a hop. Default: false."
    )
    paid_on: BlockerSet = Field(
        default=PAID_ON_DEFAULT,
        description="Which confirmed blockers of every subscription authorize a paid candidate: a set of "
        "QUOTA_EXHAUSTED, QUOTA_BELOW_RESERVE, ACCOUNT_DISABLED, AUTH_FAILED, PROVIDER_DOWN. "
        "Default: the first three.",
    )
    auto_compact_token_limit: Size | None = Field(
        default=None,
        description="Tokens from which on a client should compact, at most 90 % of `contextWindow`. Left out: none is "
        "advertised.",
    )
    candidate_reasoning_efforts: OrEmpty[Mapping[str, Name]] = Field(
        default={},
        description="The effort to use in place of the caller's, by candidate as spelled in `candidates`. "
        "Default: none.",
    )


class ManagedRouting(Section):
    """The managed routes."""

    paid_models: tuple[Name, ...] = Field(
        default=PAID_MODELS_DEFAULT,
        description="The only models that a paid candidate may name. "
        "Default: deepseek/deepseek-v4-flash, deepseek-v4-flash.",
    )
    routes: OrEmpty[Mapping[str, RouteSettings]] = Field(
        default={}, description="The routes by the alias that callers name as their model. Default: none."
    )
