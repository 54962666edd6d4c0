"""llama.cpp's server: /health, /metrics (needs --metrics), /slots, and /models of the router.

The metrics page has no labels and no KV gauge: the model comes from the configuration, the occupancy from /slots. A
router is asked for /models only, since a scrape of an unloaded model's page used to load it.
"""

from tidegate_collectors.facts import Health, Reading, Source, State, failure
from tidegate_collectors.payload import Json, Malformed, Response, items, mapping, text
from tidegate_collectors.providers.engines import TTL, EngineParser, Spec, dead, loading

LLAMACPP = Spec(
    running=("llamacpp:requests_processing",),
    waiting=("llamacpp:requests_deferred",),
    counters=(
        "llamacpp:tokens_predicted_total",
        "llamacpp:prompt_tokens_total",
        "llamacpp:n_decode_total",
    ),
    engine_labels=(),
    disabled={501: "the engine serves no metrics: start it with --metrics", 404: "the engine does not serve this page"},
)

_ROUTER = {
    "loaded": State.HEALTHY,
    "loading": State.LOADING,
    "downloading": State.LOADING,
    "sleeping": State.SLEEPING,
    "unloaded": State.SLEEPING,
    "failed": State.UNHEALTHY,
}


class LlamaCppParser(EngineParser):
    """Reads whichever of the four pages an answer is; their shapes have nothing in common."""

    def __call__(self, response: Response, source: Source) -> Reading:
        """Read an answer of /health, /metrics, /slots or /models."""
        if response.body.lstrip()[:1] not in (b"{", b"["):
            return super().__call__(response, source)
        try:
            document = response.document
        except Malformed as error:
            return failure(str(error))
        if isinstance(document, list):
            return _slots(document, source) if response.ok else failure(f"/slots answered HTTP {response.status}")
        if response.ok and isinstance(document, dict) and "data" in document:
            return _router(document, source)
        return self._health_page(response, mapping(document), source)

    def _health_page(self, response: Response, document: dict[str, Json], source: Source) -> Reading:
        error = mapping(document.get("error"))
        if response.status in self.spec.disabled:
            return failure(self.spec.disabled[response.status])
        if response.status == 503 and text(error.get("message")).casefold() == "loading model":
            return Reading(facts=(loading(source),), complete=True)
        status = text(document.get("status"))
        if status == "ok":
            return Reading(facts=(_alive(source),))
        if status == "no slot available":
            # Full is not ill. Old builds said so here; how full, the other pages tell.
            return Reading(facts=(_alive(source, slots_free=0),))
        if response.status in (500, 503):
            return Reading(facts=(dead(source),), complete=True)
        return failure(f"/health answered HTTP {response.status} in no known words")


def _alive(source: Source, slots_free: int | None = None) -> Health:
    return Health(provider=source.provider, model=source.model, ttl=TTL, state=State.HEALTHY, slots_free=slots_free)


def _slots(slots: list[Json], source: Source) -> Reading:
    """Count the busy slots. What a slot works on is not looked at: it can hold the prompt."""
    states = [_busy(mapping(slot)) for slot in slots]
    known = [state for state in states if state is not None]
    if not known:
        return failure("/slots: no slot tells whether it is busy")
    busy = sum(known)
    fact = Health(
        provider=source.provider,
        model=source.model,
        ttl=TTL,
        state=State.HEALTHY,
        running=busy,
        slots_total=len(known),
        slots_free=len(known) - busy,
    )
    return Reading(facts=(fact,), complete=True, dropped=("a slot without a state",) * (len(states) - len(known)))


def _busy(slot: dict[str, Json]) -> bool | None:
    """Return whether a slot is busy; builds before `is_processing` had an integer `state`, 0 for idle."""
    busy, state = slot.get("is_processing"), slot.get("state")
    if isinstance(busy, bool):
        return busy
    return state != 0 if isinstance(state, int) and not isinstance(state, bool) else None


def _router(document: dict[str, Json], source: Source) -> Reading:
    facts, dropped = [], []
    for entry in map(mapping, items(document.get("data"))):
        model, status = text(entry.get("id")), mapping(entry.get("status"))
        value = text(status.get("value"))
        if status.get("failed") is True:
            value = "failed"
        if not model or value not in _ROUTER:
            dropped.append(f"{model or 'a model'}: no known status")
            continue
        code = status.get("exit_code")
        reason = {"loaded": "", "failed": f"failed:exit_code={code}" if code is not None else "failed"}.get(
            value, value
        )
        facts.append(
            Health(
                provider=source.provider,
                model=model,
                ttl=TTL,
                state=_ROUTER[value],
                reason=reason,
                loaded=value == "loaded",
            )
        )
    error = "" if facts else "/models lists no model with a status"
    return Reading(facts=tuple(facts), dropped=tuple(dropped), error=error, complete=True)
