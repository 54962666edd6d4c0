"""What a collecting process shows of itself: metrics, and whether it is well. No account's numbers, no payloads."""

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from tidegate_collectors.facts import Advisory, Reading


class Meters:
    """The metrics of one process; each is labelled by the collector's id."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._readings = Counter(
            "tidegate_collector_readings", "Readings, by outcome.", ["collector", "outcome"], registry=self.registry
        )
        self._dropped = Counter(
            "tidegate_collector_dropped", "Windows and fields left out.", ["collector"], registry=self.registry
        )
        self._items = Counter(
            "tidegate_collector_items",
            "Observations, by the server's answer.",
            ["collector", "result"],
            registry=self.registry,
        )
        self._facts = Gauge("tidegate_collector_facts", "Facts that stand.", ["collector"], registry=self.registry)
        self._last = Gauge(
            "tidegate_collector_last_reading_timestamp_seconds",
            "When the last reading succeeded.",
            ["collector"],
            registry=self.registry,
        )
        self._connected = Gauge(
            "tidegate_collector_connected", "1 while the feed is open.", ["collector"], registry=self.registry
        )
        self._advisory = Gauge(
            "tidegate_collector_advisory", "1 while a status page is not green.", ["provider"], registry=self.registry
        )
        self._up: dict[str, bool] = {}
        self._errors: dict[str, str] = {}

    def register(self, collector: str) -> None:
        """Show a collector that has not done anything yet."""
        self.connected(collector, False)
        self._errors[collector] = "no reading yet"

    def reading(self, collector: str, reading: Reading, facts: int, now: float) -> None:
        """Note a reading, and how many facts stand after it."""
        self._readings.labels(collector, "ok" if reading.ok else "error").inc()
        self._dropped.labels(collector).inc(len(reading.dropped))
        self._facts.labels(collector).set(facts)
        self._errors[collector] = reading.error
        if reading.ok:
            self._last.labels(collector).set(now)
        for fact in reading.facts:
            if isinstance(fact, Advisory):
                self._advisory.labels(fact.provider).set(fact.indicator != "none")

    def items(self, collector: str, result: str, count: int = 1) -> None:
        """Note what became of observations."""
        self._items.labels(collector, result).inc(count)

    def connected(self, collector: str, up: bool) -> None:
        """Note whether a feed is open."""
        self._connected.labels(collector).set(up)
        self._up[collector] = up

    def page(self) -> bytes:
        """Return the metrics page."""
        return generate_latest(self.registry)

    def well(self) -> bool:
        """Tell whether every feed is open. A provider that does not answer is its trouble, not this process's."""
        return all(self._up.values())

    def summary(self) -> dict[str, object]:
        """Return the health of each collector, in words."""
        return {name: {"connected": up, "error": self._errors.get(name, "") or None} for name, up in self._up.items()}
