"""The cache of pins: bounded, and never wrong about what it holds."""

import pytest
from tidegate_server.stores.pin_cache import PinCache

from tests.contract.pin_samples import make_pin

PINS = [make_pin(str(n)) for n in range(1000)]


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_it_never_grows_past_its_size(size: int) -> None:
    cache = PinCache(size)
    for pin in PINS:
        cache.put(pin)
        assert cache.get(pin.pin_id) == pin
        assert len(cache) <= max(2, size)


def test_what_is_asked_for_stays() -> None:
    cache = PinCache(100)
    for pin in PINS:
        cache.put(pin)
        cache.get(PINS[0].pin_id)
    assert cache.get(PINS[0].pin_id) == PINS[0]
    assert cache.get(PINS[1].pin_id) is None


def test_a_later_put_replaces_in_whichever_generation() -> None:
    cache = PinCache(4)
    for pin in PINS[:3]:  # the first two have become old
        cache.put(pin)
    for pin in PINS[:3]:
        cache.put(pin._replace(retired=True))
        assert cache.get(pin.pin_id) == pin._replace(retired=True)
    for pin in PINS[:3]:
        found = cache.get(pin.pin_id)
        assert found is None or found.retired


def test_clear_forgets_everything() -> None:
    cache = PinCache(4)
    for pin in PINS[:4]:
        cache.put(pin)
    cache.clear()
    assert len(cache) == 0
    assert cache.get(PINS[3].pin_id) is None
