"""Ollama and LM Studio: which models are resident. Neither tells how many requests run or wait, so that stays unknown.

A model that is not resident is cold, not down: the next request loads it.
"""

from datetime import datetime

from tidegate_collectors.account import Account
from tidegate_collectors.facts import Health, Kind, Reading, Source, State, failure
from tidegate_collectors.numeric import number
from tidegate_collectors.payload import Json, Malformed, Response, items, mapping, text
from tidegate_collectors.providers.engines import TTL
from tidegate_collectors.times import rfc3339


def ollama(response: Response, source: Source) -> Reading:
    """Read /api/ps, or the live 503 of a full queue."""
    if response.status == 503 and "server busy" in text(response.any_tree.get("error")):
        account = Account(response, source)
        account.block(Kind.OVERLOADED, account.backoff(), model=source.model, reason="queue_full")
        return account.reading()
    if not response.ok:
        return failure(f"/api/ps answered HTTP {response.status}")
    try:
        tree = response.tree
    except Malformed as error:
        return failure(f"/api/ps: {error}")
    if not isinstance(tree.get("models"), list):
        return failure("/api/ps: no list of models")
    resident = {
        text(model.get("model")) or text(model.get("name")): model for model in map(mapping, items(tree["models"]))
    }
    resident.pop("", None)
    facts = [_resident(name, model, source, response) for name, model in resident.items()]
    return Reading(facts=(*facts, *_cold(source, set(resident), any_model=not facts)), complete=True)


def lmstudio(response: Response, source: Source) -> Reading:
    """Read /api/v0/models (`state`) or /api/v1/models (`loaded_instances`)."""
    if not response.ok:
        return failure(f"the model list answered HTTP {response.status}")
    try:
        tree = response.tree
    except Malformed as error:
        return failure(f"the model list: {error}")
    listed = items(tree.get("data")) or items(tree.get("models"))
    facts, dropped = [], []
    for model in map(mapping, listed):
        name, loaded = text(model.get("id")) or text(model.get("key")), _loaded(model)
        if not name or loaded is None:
            dropped.append(f"{name or 'a model'}: neither state nor instances")
            continue
        facts.append(_health(source, name, loaded=loaded))
    if not facts:
        return failure("the model list names no model with a state")
    cold = _cold(source, {fact.model for fact in facts}, any_model=False)
    return Reading(facts=(*facts, *cold), dropped=tuple(dropped), complete=True)


def _loaded(model: dict[str, Json]) -> bool | None:
    state, instances = model.get("state"), model.get("loaded_instances")
    if isinstance(instances, list):
        return bool(instances)
    return {"loaded": True, "not-loaded": False}.get(text(state))


def _resident(name: str, model: dict[str, Json], source: Source, response: Response) -> Health:
    size, in_vram = number(model.get("size")), number(model.get("size_vram"))
    share = min(float(in_vram / size), 1.0) if size and in_vram is not None and size > 0 and in_vram >= 0 else None
    unload = response.absolute(rfc3339(model.get("expires_at")))
    return _health(source, name, loaded=True, vram_fraction=share, unload_at=unload)


def _cold(source: Source, resident: set[str], *, any_model: bool) -> list[Health]:
    wanted = source.models or ((source.model,) if source.model or any_model else ())
    return [_health(source, name, loaded=False) for name in wanted if name not in resident]


def _health(
    source: Source,
    model: str,
    *,
    loaded: bool,
    vram_fraction: float | None = None,
    unload_at: datetime | None = None,
) -> Health:
    return Health(
        provider=source.provider,
        model=model,
        ttl=TTL,
        state=State.HEALTHY,
        loaded=loaded,
        vram_fraction=vram_fraction,
        unload_at=unload_at,
        reason="" if loaded else "cold",
    )
