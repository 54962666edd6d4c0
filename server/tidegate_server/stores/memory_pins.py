"""Pins in memory: for tests, ours and our users'. It passes the suite of the durable stores and forgets everything."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from tidegate_server.core.model import CorruptPin, Pin, StoredPin, WallTime
from tidegate_server.errors import StoreUnavailable
from tidegate_server.ports import PinCensus, PinFilter, PinPage


class Retirement(NamedTuple):
    """A line of the audit: who retired which pin, when and why."""

    pin_id: bytes
    who: str
    when: WallTime
    why: str


class MemoryPinStore:
    """A PinStore over a dict. `audit` holds its audit lines; `corrupt` and `unavailable` let a test hurt it."""

    def __init__(self) -> None:
        self.audit: list[Retirement] = []
        self.unavailable = False
        self._pins: dict[bytes, StoredPin] = {}

    def corrupt(self, pin_id: bytes) -> None:
        """Let this pin's row fail its checksum from now on."""
        self._pins[pin_id] = CorruptPin(pin_id)

    async def get(self, pin_id: bytes) -> StoredPin | None:
        """See PinStore."""
        self._work()
        return self._pins.get(pin_id)

    def peek(self, pin_id: bytes) -> Pin | None:
        """See PinStore."""
        pin = self._pins.get(pin_id)
        return pin if isinstance(pin, Pin) and not self.unavailable else None

    async def create(self, pin: Pin) -> tuple[StoredPin, bool]:
        """See PinStore."""
        self._work()
        if (stored := self._pins.get(pin.pin_id)) is not None:
            return stored, False
        self._pins[pin.pin_id] = pin
        return pin, True

    async def list(self, which: PinFilter, *, after: bytes, limit: int) -> PinPage:
        """See PinStore."""
        self._work()
        found = [pin for _, pin in sorted(self._pins.items()) if pin.pin_id > after and which.matches(pin)]
        page = tuple(islice(found, limit))
        return PinPage(page, page[-1].pin_id if len(found) > limit else b"")

    async def retire(self, which: PinFilter, *, who: str, when: WallTime, why: str, dry_run: bool) -> int:
        """See PinStore."""
        self._work()
        found = [pin for pin in self._pins.values() if isinstance(pin, Pin) and not pin.retired and which.matches(pin)]
        if not dry_run:
            for pin in found:
                self._pins[pin.pin_id] = pin._replace(retired=True)
                self.audit.append(Retirement(pin.pin_id, who, when, why))
        return len(found)

    async def verify(self) -> PinCensus:
        """See PinStore."""
        self._work()
        return PinCensus(len(self._pins), self._corrupt())

    async def fingerprints(self) -> Mapping[tuple[str, str, str, str], int]:
        """See PinStore."""
        self._work()
        return Counter(
            (pin.route, pin.candidate, pin.policy_fingerprint, pin.binding_fingerprint)
            for pin in self._pins.values()
            if isinstance(pin, Pin) and not pin.retired
        )

    def warnings(self) -> Sequence[str]:
        """See PinStore."""
        return [f"the pin {pin_id.hex()} does not hold" for pin_id in self._corrupt()]

    def healthy(self) -> bool:
        """See PinStore."""
        return not self.unavailable

    async def close(self) -> None:
        """See PinStore."""

    def _work(self) -> None:
        if self.unavailable:
            raise StoreUnavailable("pins")

    def _corrupt(self) -> tuple[bytes, ...]:
        return tuple(sorted(pin.pin_id for pin in self._pins.values() if isinstance(pin, CorruptPin)))
