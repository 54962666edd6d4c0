"""The page of text that a scrape gets, in the Prometheus format.

A scrape has two halves: what is true now is read on the event loop, which takes no time worth naming; the text is made
of it on a thread.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from tidegate_server.core.decide import evaluate_all
from tidegate_server.core.model import SECOND, CandidateVerdict, Instant
from tidegate_server.core.policy import Policy
from tidegate_server.core.verdicts import Groups
from tidegate_server.metrics.fact_census import take_census
from tidegate_server.metrics.measures import BOUNDS, Latency, Measures
from tidegate_server.ports import Clock, FactStore
from tidegate_server.usecases.cold_wait import ColdWait
from tidegate_server.usecases.decision_log import QueuedDecisionLog
from tidegate_server.usecases.feeds import Feeds
from tidegate_server.usecases.policies import Policies
from tidegate_server.usecases.status import OK, Status, StatusNow

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Calls(Protocol):
    """Who bounds the calls that run at once."""

    running: int
    shed: int


class Sources(NamedTuple):
    """The parts of the server that are asked at a scrape. `generation` counts the configurations that were in use."""

    policies: Policies
    facts: FactStore
    feeds: Feeds
    cold_wait: ColdWait
    log: QueuedDecisionLog
    calls: Calls
    status: Status
    generation: Callable[[], int]


class _Now(NamedTuple):
    """All that a scrape reads on the event loop."""

    now: Instant
    policy: Policy
    groups: Groups
    feeds: Mapping[str, int]
    open_feeds: int
    status: StatusNow
    generation: int


class Exposition:
    """Answers scrapes."""

    def __init__(self, measures: Measures, sources: Sources, clock: Clock) -> None:
        self._measures = measures
        self._sources = sources
        self._clock = clock
        self._process = CollectorRegistry(auto_describe=False)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._process)

    async def text(self) -> bytes:
        """The metrics now."""
        return await asyncio.to_thread(self._text, self._read())

    def _read(self) -> _Now:
        sources = self._sources
        policy = sources.policies.current
        sessions = sources.feeds.sessions
        return _Now(
            self._clock.monotonic(),
            policy,
            dict(sources.facts.groups()),
            {provider: sum(s.covers(provider) for s in sessions) for provider in policy.providers},
            len(sessions),
            sources.status(),
            sources.generation(),
        )

    def _text(self, now: _Now) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families([*self._counted(), *self._known(now), *self._server(now)]))
        return generate_latest(registry) + generate_latest(self._process)

    def _counted(self) -> Iterable[Metric]:
        """What calls left behind."""
        measures = self._measures
        decisions = CounterMetricFamily(
            "tidegate_decisions", "Admissions by answer.", labels=("route", "verdict", "reason")
        )
        bindings = CounterMetricFamily(
            "tidegate_bindings",
            "Admissions that may go on, by where to. fallback: not on the route's first candidate.",
            labels=("route", "provider", "tier", "pin", "fallback"),
        )
        by_answer: dict[tuple[str, str, str], int] = {}
        by_place: dict[tuple[str, str, str, str, str], int] = {}
        for cell in tuple(measures.decisions.values()):
            answer = (cell.route, cell.verdict.name.lower(), cell.reason)
            by_answer[answer] = by_answer.get(answer, 0) + cell.count
            if cell.tier is not None:
                fallback = "true" if cell.fallback else "false"
                place = (cell.route, cell.provider, cell.tier.name.lower(), cell.pin.name.lower(), fallback)
                by_place[place] = by_place.get(place, 0) + cell.count
        for labels, count in sorted(by_answer.items()):
            decisions.add_metric(labels, count)
        for place, count in sorted(by_place.items()):
            bindings.add_metric(place, count)
        yield decisions
        yield bindings
        yield _histogram("tidegate_admit_seconds", "Time to an answer, cold waits included.", {(): measures.admit})
        yield _counter(
            "tidegate_admit_errors", "Admissions without a decision, by error.", measures.admit_errors, "error"
        )
        yield _counter("tidegate_hops_entered", "Hops that were granted.", measures.hops_entered)
        yield _counter(
            "tidegate_flow_refusals",
            "Hops and requests of flows that a limit refused.",
            measures.flow_refusals,
            "limit",
        )
        yield _counter("tidegate_pins_created", "Pins that were stored.", measures.pins_created)
        yield _counter("tidegate_selections", "Agent selections by outcome.", measures.selections, "outcome")
        yield _histogram("tidegate_select_seconds", "Time to a selected agent.", {(): measures.select})
        stores: dict[tuple[str, ...], Latency] = {
            key: latency for key, latency in sorted(measures.stores.items()) if latency.count
        }
        yield _histogram("tidegate_store_seconds", "Time of a store's operation.", stores, ("store", "operation"))
        errors = CounterMetricFamily(
            "tidegate_store_errors", "Operations that a store could not do.", labels=("store", "operation")
        )
        for key, latency in sorted(measures.stores.items()):
            errors.add_metric(key, latency.errors)
        yield errors

    def _known(self, now: _Now) -> Iterable[Metric]:
        """What collectors brought, and what it means for a new worker."""
        labels = ("provider", "kind")
        facts = GaugeMetricFamily("tidegate_facts", "Facts by freshness.", labels=(*labels, "freshness"))
        newest = GaugeMetricFamily("tidegate_fact_age_seconds", "Age of the newest fact.", labels=labels)
        oldest = GaugeMetricFamily("tidegate_fact_oldest_age_seconds", "Age of the oldest fact.", labels=labels)
        for row in take_census(now.policy, now.groups, now.now):
            key = (row.provider, row.kind)
            for name in ("fresh", "stale", "unknown"):
                facts.add_metric((*key, name), getattr(row, name))
            if row.newest is not None and row.oldest is not None:
                newest.add_metric(key, row.newest / SECOND)
                oldest.add_metric(key, row.oldest / SECOND)
        candidates = GaugeMetricFamily(
            "tidegate_candidates",
            "A route's candidates by their verdict for a new worker.",
            labels=("route", "verdict"),
        )
        for name, route in now.policy.routes.items():
            verdicts = [e.verdict for e in evaluate_all(route, "", now.groups, now.now)]
            for verdict in CandidateVerdict:
                candidates.add_metric((name, verdict.name.lower()), verdicts.count(verdict))
        feeds = GaugeMetricFamily(
            "tidegate_provider_feeds", "Connected collectors that cover a provider.", labels=("provider",)
        )
        for provider, count in now.feeds.items():
            feeds.add_metric((provider,), count)
        yield from (facts, newest, oldest, candidates, feeds)

    def _server(self, now: _Now) -> Iterable[Metric]:
        """The server itself."""
        sources, status = self._sources, now.status
        yield _gauge("tidegate_ready", "1 when the server takes admissions.", status.ready)
        works = GaugeMetricFamily("tidegate_dependency_works", "1 when it does.", labels=("dependency",))
        for name, state in status.dependencies.items():
            works.add_metric((name,), state == OK)
        yield works
        yield _gauge(
            "tidegate_warnings", "What an operator should know; GetStatus has the words.", len(status.warnings)
        )
        info = GaugeMetricFamily("tidegate_configuration_info", "The configuration in force.", labels=("revision",))
        info.add_metric((status.revision,), 1)
        yield info
        good = not status.configuration_error
        yield _gauge("tidegate_configuration_last_reload_good", "0: refused, an older one serves.", good)
        yield _gauge("tidegate_configuration_generation", "Configurations that were in use.", now.generation)
        yield _gauge("tidegate_feeds", "Open capacity feeds.", now.open_feeds)
        yield _gauge("tidegate_cold_waiting", "Admissions that wait for facts.", sources.cold_wait.waiting)
        yield _counter("tidegate_cold_waits", "Admissions that waited for facts.", sources.cold_wait.waits)
        yield _counter("tidegate_cold_waits_shed", "Cold waits above the bound: refused.", sources.cold_wait.shed)
        yield _gauge("tidegate_decision_log_waiting", "Decisions that are not written yet.", sources.log.waiting)
        yield _counter("tidegate_decision_log_written", "Decisions that were written.", sources.log.written)
        yield _counter("tidegate_decision_log_dropped", "Decisions that the log has lost.", sources.log.dropped)
        yield _gauge("tidegate_calls_running", "Unary calls in work.", sources.calls.running)
        yield _counter("tidegate_calls_shed", "Calls above the bound: refused.", sources.calls.shed)


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


def _counter(name: str, text: str, value: float | Mapping[str, int], label: str = "") -> Metric:
    if not isinstance(value, Mapping):
        return CounterMetricFamily(name, text, value=float(value))
    family = CounterMetricFamily(name, text, labels=(label,))
    for key, count in sorted(value.items()):
        family.add_metric((key,), count)
    return family


def _histogram(
    name: str, text: str, latencies: Mapping[tuple[str, ...], Latency], labels: tuple[str, ...] = ()
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for key, latency in latencies.items():
        buckets, seen = [], 0
        for bound, count in zip((*BOUNDS, None), tuple(latency.counts), strict=True):
            seen += count
            buckets.append(("+Inf" if bound is None else f"{bound / SECOND:g}", seen))
        family.add_metric(key, buckets, latency.total / SECOND)
    return family
