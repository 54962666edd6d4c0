"""Applies the health rules of a mapping to a Prometheus page."""

from collections.abc import Mapping
from datetime import timedelta

from tidegate_collectors.facts import Engine, Health, Reading, Source, State, failure
from tidegate_collectors.generic.mapping import Generic, HealthRule, Metric, Unhealthy
from tidegate_collectors.numeric import count, fraction
from tidegate_collectors.payload import Malformed, Response
from tidegate_collectors.progress import Progress
from tidegate_collectors.prometheus import MAX_SERIES, Series, first, grouped, only, read, reduce_over, where

Page = Mapping[str, list[Series]]


class PageMapping:
    """Reads one engine's page by its health rules; remembers counters between two pages."""

    def __init__(self, mapping: Generic) -> None:
        self._rules = [rule.health for rule in mapping.emit if rule.health]
        self._most = mapping.prometheus.max_series if mapping.prometheus else MAX_SERIES
        self._progress = [
            Progress(timedelta(seconds=rule.progress.stall if rule.progress else 30.0)) for rule in self._rules
        ]

    def __call__(self, response: Response, source: Source) -> Reading:
        """Return the health of each model on the page, or the collector's error."""
        if not response.ok:
            return failure(f"the metrics page answered HTTP {response.status}")
        facts: list[Health] = []
        try:
            for rule, progress in zip(self._rules, self._progress, strict=True):
                page = read(response.text, _names(rule), max_series=self._most)
                if not any(page.values()):
                    return failure("none of the mapping's metrics is on the page")
                for model, mine in _models(rule, page, source).items():
                    facts.append(_health(rule, progress, mine, model, source, response))
        except Malformed as error:
            return failure(str(error))
        return Reading(facts=tuple(facts), complete=True)


def _names(rule: HealthRule) -> set[str]:
    metrics = [rule.running, rule.waiting, rule.kv_used, rule.waiting_capacity, *rule.unhealthy_when]
    names = {name for metric in metrics if metric for name in metric.metric}
    return names | (set(rule.progress.counter) if rule.progress else set())


def _models(rule: HealthRule, page: Page, source: Source) -> dict[str, Page]:
    """Split a page by the label that names the model; series without it belong to every model."""
    default = (rule.by.default if rule.by else "") or source.model
    label = rule.by.label if rule.by else ""
    keys = sorted({key[0] for series in page.values() for key in grouped(series, (label,)) if key[0]}) if label else []
    if not keys:
        return {default: page}
    return {
        key: {
            name: [each for each in series if each.labels.get(label, "") in ("", key)] for name, series in page.items()
        }
        for key in keys
    }


def _health(rule: HealthRule, progress: Progress, page: Page, model: str, source: Source, response: Response) -> Health:
    running = _count(rule.running, page)
    reason = next((each.reason for each in rule.unhealthy_when if _shows(each, page)), "")
    stalled = _stalled(rule, progress, page, model, running, response)
    if not reason and stalled:
        reason = f"no_progress_{int(progress.stall.total_seconds())}s"
    healthy = not reason
    return Health(
        provider=source.provider,
        model=model,
        ttl=rule.ttl,
        state=_state(reason),
        reason=reason,
        running=running,
        waiting=_count(rule.waiting, page),
        kv_usage=_fraction(rule.kv_used, page),
        waiting_capacity=_count(rule.waiting_capacity, page) if healthy else None,
        engines=_engines(rule, page),
    )


def _state(reason: str) -> State:
    for state in (State.SLEEPING, State.LOADING):
        if reason.startswith(state):
            return state
    return State.UNHEALTHY if reason else State.HEALTHY


def _engines(rule: HealthRule, page: Page) -> tuple[Engine, ...]:
    if not rule.engines:
        return ()
    label = rule.engines
    keys = sorted({key[0] for series in page.values() for key in grouped(series, (label,)) if key[0]})
    if len(keys) < 2:
        return ()
    pages = {key: {name: where(series, {label: key}) for name, series in page.items()} for key in keys}
    return tuple(
        Engine(
            engine=key,
            running=_count(rule.running, mine),
            waiting=_count(rule.waiting, mine),
            kv_usage=_fraction(rule.kv_used, mine),
        )
        for key, mine in pages.items()
    )


def _stalled(
    rule: HealthRule, progress: Progress, page: Page, model: str, running: int | None, response: Response
) -> bool:
    if rule.progress is None:
        return False
    counters = tuple(each.value for name in rule.progress.counter for each in page.get(name, []))
    return progress.stalled((model,), counters, bool(running), response.received)


def _shows(rule: Unhealthy, page: Page) -> bool:
    return any(
        (rule.eq is not None and each.value == rule.eq)
        or (rule.gt is not None and each.value > rule.gt)
        or (rule.lt is not None and each.value < rule.lt)
        for each in _selected(rule, page)
    )


def _selected(metric: Metric, page: Page) -> list[Series]:
    series = where(first(page, metric.metric), metric.match)
    for labels, fold in ((metric.max_over, max), (metric.min_over, min), (metric.sum_over, sum)):
        if labels:
            series = reduce_over(series, labels, fold)
    return series


def _value(metric: Metric | None, page: Page) -> float | None:
    """Return a metric's one value."""
    if metric is None:
        return None
    return only(_selected(metric, page))


def _count(metric: Metric | None, page: Page) -> int | None:
    return count(_value(metric, page))


def _fraction(metric: Metric | None, page: Page) -> float | None:
    value = _value(metric, page)
    if value is None or metric is None:
        return None
    return fraction(value / 100 if metric.unit == "percent" else value)
