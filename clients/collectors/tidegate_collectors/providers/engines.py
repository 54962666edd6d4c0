"""Local inference engines with a Prometheus page: vLLM, SGLang, llama.cpp, NIM, TGI.

What differs between them is a table (`Spec`); what they have in common is here. Counts are added up over engines, a
cache's fill level is that of the fullest one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from tidegate_collectors.facts import Engine, Health, Reading, Source, State, failure
from tidegate_collectors.numeric import count, fraction
from tidegate_collectors.payload import Malformed, Response
from tidegate_collectors.progress import Progress
from tidegate_collectors.prometheus import Series, first, grouped, largest, read, reduce_over, total

TTL = 15.0
LOADING_TTL = 10.0


@dataclass(frozen=True, kw_only=True)
class Spec:
    """How one engine's page is read. Metrics are lists of aliases, the newest name first."""

    running: tuple[str, ...]
    waiting: tuple[str, ...]
    kv_usage: tuple[tuple[str, ...], ...] = ()
    """Pools of cache, each a list of aliases; the fullest counts."""
    also_waiting: tuple[str, ...] = ()
    """Further queues, each a metric of its own, that are added to `waiting`."""
    waiting_by_reason: str = ""
    sleep_state: str = ""
    throughput: str = ""
    counters: tuple[str, ...] = ()
    """Whatever moves while the engine works."""
    engine_labels: tuple[str, ...] = ("engine",)
    """Labels that tell independent engines apart."""
    copies: tuple[str, ...] = ()
    """Labels that tell apart ranks which repeat the same numbers."""
    breakdown: str = ""
    """Label whose empty value is the total of its other values."""
    deep_queue: int = 0
    """Waiting requests from which on an engine that runs none, and generates nothing, is stalled; 0: never."""
    disabled: Mapping[int, str] = field(default_factory=lambda: {404: "the engine serves no metrics"})
    """What a status of the page means that is neither success nor failure of the engine."""

    @property
    def names(self) -> set[str]:
        """Every metric that is looked at."""
        pools = {name for pool in self.kv_usage for name in pool}
        single = {self.waiting_by_reason, self.sleep_state, self.throughput} - {""}
        return {*self.running, *self.waiting, *self.also_waiting, *self.counters, *pools, *single}


@dataclass(slots=True)
class Page:
    """The series of one model on a page."""

    spec: Spec
    series: Mapping[str, list[Series]]

    def counts(self, aliases: tuple[str, ...]) -> list[Series]:
        """Return a count's series, one for each independent engine, process and reason."""
        found = first(self.series, aliases)
        if self.spec.breakdown and any(not each.labels.get(self.spec.breakdown) for each in found):
            found = [each for each in found if not each.labels.get(self.spec.breakdown)]
        return reduce_over(found, self.spec.copies, max) if self._repeats(found) else found

    def _repeats(self, found: list[Series]) -> bool:
        """Tell whether ranks repeat one batch's numbers.

        Where independent engines are labelled as such, the other ranks are copies. Where they are not, ranks that
        differ are themselves independent: data-parallel attention of builds that do not label it.
        """
        labelled = any(each.labels.get(label) for each in found for label in self.spec.engine_labels)
        return labelled or len({each.value for each in found}) < 2

    def sum(self, aliases: tuple[str, ...]) -> int | None:
        """Return a count over all engines."""
        return count(total(self.counts(aliases)))

    def waiting(self) -> int | None:
        """Return how many requests wait, in whatever queue."""
        queues = [self.sum(self.spec.waiting), *(self.sum((name,)) for name in self.spec.also_waiting)]
        known = [queue for queue in queues if queue is not None]
        return sum(known) if known else None

    def fullest(self) -> float | None:
        """Return the fill level of the fullest pool of the fullest engine."""
        return fraction(largest(each for pool in self.spec.kv_usage for each in first(self.series, pool)))

    def engines(self) -> dict[tuple[str, ...], "Page"]:
        """Return the page of each independent engine, in the order of their names."""
        keys = sorted({key for series in self.series.values() for key in grouped(series, self.spec.engine_labels)})
        split = {name: grouped(series, self.spec.engine_labels) for name, series in self.series.items()}
        return {
            key: Page(self.spec, {name: groups[key] for name, groups in split.items() if key in groups}) for key in keys
        }

    def moving(self) -> tuple[float, ...]:
        """Return what moves while the engine works."""
        return tuple(each.value for name in self.spec.counters for each in self.series.get(name, []))


class EngineParser:
    """Reads the pages of one engine. It remembers counters and models between two pages, and nothing else."""

    def __init__(self, spec: Spec, progress: Progress | None = None) -> None:
        self.spec = spec
        self.progress = progress or Progress()
        self._served: tuple[str, ...] = ()

    def __call__(self, response: Response, source: Source) -> Reading:
        """Read an answer of the metrics page or of the health endpoint, whichever it is."""
        if response.status in self.spec.disabled:
            return failure(self.spec.disabled[response.status])
        if response.status in (500, 503):
            # The page that would name its models is gone; those it named last are dead.
            models = self._served or (source.model,)
            return Reading(facts=tuple(dead(replace(source, model=model)) for model in models), complete=True)
        if not response.ok:
            return failure(f"the metrics page answered HTTP {response.status}")
        if not response.body.strip():
            return failure("an empty page: it proves the API process, not the engine")
        try:
            return self._page(read(response.text, self.spec.names), source, response.received)
        except Malformed as error:
            return failure(str(error))

    def _page(self, series: Mapping[str, list[Series]], source: Source, now: datetime) -> Reading:
        if not any(series.values()):
            return failure("no series of this engine on the page")
        models = sorted({key for each in series.values() for key in grouped(each, ("model_name",))})
        named = [key for key in models if key[0]] or [("",)]
        facts = []
        for (model,) in named:
            mine = {name: [each for each in group if _of(each, model)] for name, group in series.items()}
            facts.append(self._health(Page(self.spec, mine), model or source.model, source, now))
        self._served = tuple(fact.model for fact in facts)
        return Reading(facts=tuple(facts), complete=True)

    def _health(self, page: Page, model: str, source: Source, now: datetime) -> Health:
        running, waiting = page.sum(self.spec.running), page.waiting()
        state, reason = self._state(page, model, now)
        engines = page.engines()
        named = {key: engine for key, engine in engines.items() if any(key)}
        return Health(
            provider=source.provider,
            model=model,
            ttl=TTL,
            state=state,
            reason=reason,
            running=running,
            waiting=waiting,
            kv_usage=page.fullest(),
            waiting_capacity=_waiting_capacity(page) if state is State.HEALTHY else None,
            engines=tuple(_engine(key, engine) for key, engine in named.items()) if len(named) > 1 else (),
        )

    def _state(self, page: Page, model: str, now: datetime) -> tuple[State, str]:
        asleep = _sleeping(page)
        if asleep:
            return State.SLEEPING, f"sleeping:{asleep}"
        running, waiting = page.sum(self.spec.running), page.waiting()
        throughput = total(page.series.get(self.spec.throughput, []))
        if self.spec.deep_queue and running == 0 and (waiting or 0) >= self.spec.deep_queue and not throughput:
            return State.UNHEALTHY, f"stalled: running=0,waiting={waiting},throughput=0"
        # Every engine takes its scrape, also behind one that has stalled already.
        stalled = [
            self.progress.stalled((model, *key), engine.moving(), bool(engine.sum(self.spec.running)), now)
            for key, engine in page.engines().items()
            if engine.counts(self.spec.running)
        ]
        if any(stalled):
            return State.UNHEALTHY, f"no_progress_{int(self.progress.stall.total_seconds())}s"
        return State.HEALTHY, ""


def dead(source: Source, reason: str = "engine_dead") -> Health:
    """Return the health of an engine whose own endpoint says that it is dead."""
    return Health(provider=source.provider, model=source.model, ttl=TTL, state=State.UNHEALTHY, reason=reason)


def loading(source: Source) -> Health:
    """Return the health of an engine that is up and reads its model: neither down nor overloaded."""
    return Health(provider=source.provider, model=source.model, ttl=LOADING_TTL, state=State.LOADING, reason="loading")


def _of(series: Series, model: str) -> bool:
    return series.labels.get("model_name", "") in ("", model)


def _sleeping(page: Page) -> str:
    """Return the depth of the sleep, or nothing of an engine that is awake or does not tell."""
    states = page.series.get(page.spec.sleep_state, [])
    awake = [each.value for each in states if each.labels.get("sleep_state") == "awake"]
    if not awake or min(awake) > 0:
        return ""
    depth = [each.labels.get("sleep_state", "") for each in states if each.value and _asleep(each)]
    return depth[0] if depth else "unknown"


def _asleep(series: Series) -> bool:
    return series.labels.get("sleep_state") != "awake"


def _waiting_capacity(page: Page) -> int | None:
    reasons = page.series.get(page.spec.waiting_by_reason, [])
    return count(total(each for each in reasons if each.labels.get("reason") == "capacity"))


def _engine(key: tuple[str, ...], page: Page) -> Engine:
    return Engine(
        engine="/".join(part for part in key if part),
        running=page.sum(page.spec.running),
        waiting=page.waiting(),
        kv_usage=page.fullest(),
    )
