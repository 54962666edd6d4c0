"""Ids, records and checksums of pins."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_server.core import pins as core_pins
from tidegate_server.core.model import CorruptPin, Pin, Tier
from tidegate_server.core.pins import PinCodec

from tests.contract.pin_samples import make_pin

KEY = bytes(range(32))
CODEC = PinCodec(KEY)
PIN = make_pin("worker")

text = st.text(st.characters(), max_size=40)  # surrogates, too
pins = st.builds(
    Pin,
    st.binary(min_size=32, max_size=32),
    *[text] * 5,
    st.sampled_from(Tier),
    *[text] * 3,
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.booleans(),
)


def test_an_id_stays_the_same_for_ever() -> None:
    # Fixed here once: another id for the same worker would lose every pin that is stored.
    assert (
        CODEC.pin_id("default", "", "managed/routine", "thread-1").hex()
        == "3ef3edb9655006e739f65bd872b0f80fd6b28b7cffda95923d6b0452e199cf30"
    )


def test_a_record_stays_readable_for_ever() -> None:
    record, checksum = CODEC.seal(PIN)
    assert checksum.hex() == "09bbb7a3d7c23b8ba725950e43427aadd639d47f13744992ce3991089e8cc7aa"
    assert record[0] == 1


def test_ids_differ_where_any_part_or_border_differs() -> None:
    parts = ["", "a", "b", "ab", "ba", "A", "a ", "a\0", "\0a", "e\u0301", "\u00e9", "\ud800"]
    everything = list(itertools.product(parts, repeat=4))
    assert len({CODEC.pin_id(*names) for names in everything}) == len(everything)


@given(st.tuples(text, text, text, text), st.tuples(text, text, text, text))
def test_ids_are_equal_only_for_equal_names(one: tuple[str, str, str, str], other: tuple[str, str, str, str]) -> None:
    assert (CODEC.pin_id(*one) == CODEC.pin_id(*other)) == (one == other)


def test_another_key_gives_other_ids_and_another_check_value() -> None:
    other = PinCodec(bytes(32) + b"1")
    assert other.pin_id("n", "t", "r", "w") != CODEC.pin_id("n", "t", "r", "w")
    assert not other.same_key(CODEC.check_value)
    assert PinCodec(KEY).same_key(CODEC.check_value)
    assert other.open(PIN.pin_id, *CODEC.seal(PIN)) == CorruptPin(PIN.pin_id)


def test_a_key_of_any_length_counts_whole() -> None:
    long = bytes(200)
    assert PinCodec(long).check_value != PinCodec(long[:-1]).check_value
    assert PinCodec(long).check_value != PinCodec(long[:-1] + b"\1").check_value


@pytest.mark.parametrize("size", [0, 1, 31])
def test_a_short_key_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="at least 32 bytes"):
        PinCodec(b"k" * size)


@given(pins)
def test_what_was_sealed_opens_to_the_same(pin: Pin) -> None:
    assert CODEC.open(pin.pin_id, *CODEC.seal(pin)) == pin


def test_every_single_flipped_bit_is_found() -> None:
    row = (PIN.pin_id, *CODEC.seal(PIN))
    assert CODEC.open(*row) == PIN
    for column, content in enumerate(row):
        for bit in range(len(content) * 8):
            hurt = bytearray(content)
            hurt[bit // 8] ^= 1 << bit % 8
            changed: list[object] = list(row)
            changed[column] = bytes(hurt)
            assert isinstance(CODEC.open(*changed), CorruptPin), (column, bit)


@pytest.mark.parametrize("wrong", [None, 7, 1.5, "text", b"", b"short"])
def test_a_row_of_other_types_or_lengths_is_corrupt(wrong: object) -> None:
    record, checksum = CODEC.seal(PIN)
    assert CODEC.open(PIN.pin_id, wrong, checksum) == CorruptPin(PIN.pin_id)
    assert CODEC.open(PIN.pin_id, record, wrong) == CorruptPin(PIN.pin_id)
    assert isinstance(CODEC.open(wrong, record, checksum), CorruptPin)


def test_a_row_moved_to_another_worker_is_corrupt() -> None:
    other = make_pin("other").pin_id
    assert CODEC.open(other, *CODEC.seal(PIN)) == CorruptPin(other)


def test_an_unretired_tombstone_is_corrupt() -> None:
    record, _ = CODEC.seal(PIN)
    _, checksum = CODEC.seal(PIN._replace(retired=True))
    assert CODEC.open(PIN.pin_id, record, checksum) == CorruptPin(PIN.pin_id)


def test_a_record_of_a_later_version_is_not_misread() -> None:
    record, _ = CODEC.seal(PIN)
    later = b"\2" + record[1:]
    with pytest.raises(ValueError, match="record format 2"):
        CODEC.open(PIN.pin_id, later, CODEC._checksum(PIN.pin_id, later))


def test_an_id_is_the_same_whatever_was_named_before_and_only_so_much_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_pins, "_PLACES_KEPT", 2)
    codec = PinCodec(KEY)
    for _ in range(2):
        for tenant in ("", "a", "b", "c"):
            fresh = PinCodec(KEY).pin_id("default", tenant, "managed/routine", "thread-1")
            assert codec.pin_id("default", tenant, "managed/routine", "thread-1") == fresh
            assert len(codec._for_places) <= 2
