"""From a checked configuration to what the core decides with. Pure: the same configuration gives the same policy."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tidegate_server.config.model import Configuration
from tidegate_server.config.names import Target, index, targets
from tidegate_server.config.routing import RouteSettings
from tidegate_server.core.fingerprint import binding_fingerprint, fingerprint, policy_fingerprint
from tidegate_server.core.flow.model import FlowLimits, FlowSettings
from tidegate_server.core.policy import (
    Candidate,
    CatalogEntry,
    FreshnessLimits,
    KnownProvider,
    Policy,
    Route,
    Saturation,
)

COLLABORATION_CONTRACT = "v2"
"""What every managed route advertises (§7 of the contract)."""


def compile_policy(configuration: Configuration) -> Policy:
    """Compile everything that decisions depend on."""
    known = index(configuration)
    routes = {name: _route(name, settings, known) for name, settings in configuration.managed_routing.routes.items()}
    limits = configuration.freshness
    return Policy(
        revision=revision(configuration),
        routes=routes,
        models=_models(configuration, routes),
        providers=_providers(configuration),
        catalog=_catalog(configuration, routes),
        freshness=FreshnessLimits(limits.health, limits.quota, limits.balance, limits.availability),
        cold_wait=configuration.cold_wait,
    )


def revision(configuration: Configuration) -> str:
    """Return the fingerprint of the whole configuration, defaults included. It covers no password of a store's URL."""
    whole: dict[str, Any] = configuration.model_dump(mode="json", by_alias=True)
    return fingerprint(whole)


def flow_settings(configuration: Configuration) -> FlowSettings:
    """Return the flow guard's settings; of each profile the limits as a whole, "" being a flow without a profile."""
    base = configuration.flow
    own = FlowLimits(base.max_depth, base.max_fan_out, base.max_tokens, base.timeout)
    profiles = {
        name: own._replace(**{key: value for key in own._fields if (value := getattr(profile, key)) is not None})
        for name, profile in base.profiles.items()
    }
    return FlowSettings({"": own, **profiles}, base.state_ttl)


def _candidate(name: str, target: Target, mapped_effort: str = "") -> Candidate:
    provider, model = target.provider, target.model
    saturation = provider.saturation
    return Candidate(
        name=name,
        provider=target.provider_name,
        model=target.model_name,
        tier=provider.kind,
        credential_source=provider.credential,
        binding_fingerprint=binding_fingerprint(
            provider=target.provider_name, kind=provider.kind, credential=provider.credential, model=target.model_name
        ),
        reasoning_efforts=model.reasoning_efforts,
        mapped_effort=mapped_effort,
        required_windows=tuple(_window(window) for window in provider.required_windows),
        saturation=None if saturation is None else Saturation(saturation.max_waiting, saturation.max_kv_usage),
        session_affinity=provider.session_affinity,
    )


def _window(written: str) -> tuple[str, str]:
    window, _, scope = written.partition("/")
    return window, scope


def _route(name: str, settings: RouteSettings, known: Mapping[str, Target]) -> Route:
    efforts = settings.candidate_reasoning_efforts
    return Route(
        name=name,
        purpose=settings.purpose,
        candidates=tuple(_candidate(c, known[c], efforts.get(c, "")) for c in settings.candidates),
        fingerprint=_fingerprint(settings),
        context_window=settings.context_window,
        max_context_bytes=settings.max_context_bytes,
        min_remaining_percent=settings.min_remaining_percent,
        allow_paid=settings.allow_paid,
        prefer_paid_flash=settings.prefer_paid_flash,
        require_flow=settings.require_flow,
        paid_on=settings.paid_on,
        auto_compact_token_limit=settings.auto_compact_token_limit,
    )


def _fingerprint(settings: RouteSettings) -> str:
    return policy_fingerprint(
        purpose=settings.purpose,
        candidates=settings.candidates,
        context_window=settings.context_window,
        max_context_bytes=settings.max_context_bytes,
        min_remaining_percent=settings.min_remaining_percent,
        allow_paid=settings.allow_paid,
        prefer_paid_flash=settings.prefer_paid_flash,
        require_flow=settings.require_flow,
        paid_on=settings.paid_on,
        auto_compact_token_limit=settings.auto_compact_token_limit,
        candidate_reasoning_efforts=settings.candidate_reasoning_efforts,
    )


def _models(configuration: Configuration, routes: Mapping[str, Route]) -> Mapping[str, Candidate]:
    """Return each model under `provider/model`, its alias, and its bare name where that can mean nothing else."""
    every = list(targets(configuration))
    fixed = {target.full_name: _candidate(_fixed_name(target), target) for target in every}
    models = dict(fixed)
    models |= {target.model.alias: fixed[target.full_name] for target in every if target.model.alias is not None}
    bare = Counter(target.model_name for target in every)
    for target in every:
        name = target.model_name
        if bare[name] == 1 and name not in models and name not in routes:
            models[name] = fixed[target.full_name]
    return models


def _fixed_name(target: Target) -> str:
    return target.full_name if target.model.alias is None else target.model.alias


def _providers(configuration: Configuration) -> Mapping[str, KnownProvider]:
    return {
        name: KnownProvider(
            tier=provider.kind,
            models={
                spelled: model_name
                for model_name, model in provider.models.items()
                for spelled in (model_name, *model.engine_names)
            },
        )
        for name, provider in configuration.providers.items()
    }


def _catalog(configuration: Configuration, routes: Mapping[str, Route]) -> tuple[CatalogEntry, ...]:
    """Return the fixed models, their own metadata untouched, and then the routes (§7)."""
    fixed = tuple(
        CatalogEntry(
            id=_fixed_name(target),
            managed=False,
            context_window=target.model.context_window,
            reasoning_efforts=target.model.reasoning_efforts,
            metadata=dict(target.model.metadata),
        )
        for target in targets(configuration)
    )
    managed = tuple(
        CatalogEntry(
            id=route.name,
            managed=True,
            context_window=route.context_window,
            reasoning_efforts=_common_efforts(route),
            auto_compact_token_limit=route.auto_compact_token_limit,
            collaboration_contract=COLLABORATION_CONTRACT,
        )
        for route in routes.values()
    )
    return fixed + managed


def _common_efforts(route: Route) -> tuple[str, ...]:
    """Return the efforts that every candidate supports, in the first candidate's order."""
    first, *others = route.candidates
    return tuple(effort for effort in first.reasoning_efforts if all(effort in c.reasoning_efforts for c in others))
