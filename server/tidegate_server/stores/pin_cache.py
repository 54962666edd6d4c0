"""The pins that were asked for lately. Pins are immutable, so a positive answer is right for ever (§5)."""

from collections.abc import Iterable

from tidegate_server.core.model import Pin


class PinCache:
    """At most `size` pins; those not asked for the longest go first, roughly.

    Two generations in place of a linked list: a hit is one dict look-up, and when the young generation has grown to
    half of the size the old one goes. Only for the event loop's thread.
    """

    def __init__(self, size: int) -> None:
        self._half = max(1, size // 2)
        self._young: dict[bytes, Pin] = {}
        self._old: dict[bytes, Pin] = {}

    def get(self, pin_id: bytes) -> Pin | None:
        """The pin, if it is here."""
        pin = self._young.get(pin_id)
        if pin is None:
            pin = self._old.get(pin_id)
            if pin is not None:
                self.put(pin)
        return pin

    def put(self, pin: Pin) -> None:
        """Keep this pin, in place of what was kept under its id."""
        if len(self._young) >= self._half and pin.pin_id not in self._young:
            self._old, self._young = self._young, {}
        self._young[pin.pin_id] = pin

    def drop(self, pin_ids: Iterable[bytes]) -> None:
        """Forget these."""
        for pin_id in pin_ids:
            self._young.pop(pin_id, None)
            self._old.pop(pin_id, None)

    def clear(self) -> None:
        """Forget everything."""
        self._young, self._old = {}, {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())
