"""Everything that reads bytes of strangers, by name."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import calls, parsers

SEEDS = Path(__file__).parent / "seeds"
"""Inputs that once broke something, or reach what no seed made by code reaches; one folder a target."""


class Target(NamedTuple):
    """A function that must return for any bytes; the inputs to begin with; what ends what it started."""

    run: Callable[[bytes], None]
    made: Callable[[], Iterator[bytes]]
    close: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        """What it is called."""
        return self.run.__name__

    def seeds(self) -> Iterator[bytes]:
        """Those made by code, then those that are kept as files."""
        yield from self.made()
        for path in sorted((SEEDS / self.name).glob("*")):
            yield path.read_bytes()


TARGETS = {
    target.name: target
    for target in (
        Target(parsers.configuration, parsers.configuration_seeds),
        Target(parsers.traceparent, parsers.traceparent_seeds),
        Target(parsers.tracestate, parsers.tracestate_seeds),
        Target(parsers.collector, parsers.collector_seeds),
        Target(calls.calls, calls.calls_seeds, calls.close),
    )
}
