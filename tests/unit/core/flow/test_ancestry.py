"""What a signed member proves, and everything that it does not."""

import base64

import pytest
from tidegate_server.core.flow.ancestry import Keyring, sign, verify
from tidegate_server.core.flow.model import FlowKey, Signed, Unproved
from tidegate_server.core.flow.tracecontext import LARGE_MEMBER, parse_tracestate, write_tracestate

OLD, NEW, FOREIGN = b"o" * 32, b"n" * 32, b"f" * 32
KEYS = Keyring((NEW, OLD))
FLOW = FlowKey("team-a", "4bf92f3577b34da6a3ce929d0e0e4736")
HOP = Signed("00f067aa0ba902b7", 1_700_000_000_000_000_000, 120_000_000_000)
VALUE = sign(KEYS, FLOW, "planner", HOP)


def test_a_member_proves_its_hop_to_its_target() -> None:
    assert verify(KEYS, FLOW, "planner", (VALUE,)) == HOP


def test_the_first_key_signs_and_all_verify() -> None:
    before = sign(Keyring((OLD,)), FLOW, "planner", HOP)
    assert verify(KEYS, FLOW, "planner", (before,)) == HOP
    assert verify(Keyring((OLD,)), FLOW, "planner", (VALUE,)) is Unproved.BAD_MEMBER
    assert sign(Keyring((OLD, NEW)), FLOW, "planner", HOP) == before


def test_no_member_is_no_proof_and_no_forgery() -> None:
    assert verify(KEYS, FLOW, "planner", ()) is Unproved.NO_MEMBER


@pytest.mark.parametrize(
    ("key", "agent", "values"),
    [
        (FLOW, "coder", (VALUE,)),
        (FLOW, "", (VALUE,)),
        (FLOW, "planner\x00", (VALUE,)),
        (FLOW._replace(namespace="team-b"), "planner", (VALUE,)),
        (FLOW._replace(trace_id="4bf92f3577b34da6a3ce929d0e0e4737"), "planner", (VALUE,)),
        (FLOW, "planner", (VALUE, VALUE)),
        (FLOW, "planner", (VALUE[:-1],)),
        (FLOW, "planner", (VALUE + "A",)),
        (FLOW, "planner", (VALUE + "=",)),
        (FLOW, "planner", ("",)),
        (FLOW, "planner", ("é" * len(VALUE),)),
        (FLOW, "planner", ("!" * len(VALUE),)),
        (FLOW, "planner", (sign(Keyring((FOREIGN,)), FLOW, "planner", HOP),)),
    ],
)
def test_anything_else_is_a_bad_member(key: FlowKey, agent: str, values: tuple[str, ...]) -> None:
    assert verify(KEYS, key, agent, values) is Unproved.BAD_MEMBER


def test_no_bit_of_a_member_can_be_changed() -> None:
    raw = base64.urlsafe_b64decode(VALUE + "=" * (-len(VALUE) % 4))
    for bit in range(len(raw) * 8):
        forged = bytearray(raw)
        forged[bit // 8] ^= 1 << bit % 8
        value = base64.urlsafe_b64encode(bytes(forged)).rstrip(b"=").decode()
        assert verify(KEYS, FLOW, "planner", (value,)) is Unproved.BAD_MEMBER


def test_a_member_is_legal_in_a_tracestate_and_none_of_the_first_to_be_dropped() -> None:
    written = write_tracestate(VALUE, ())
    assert parse_tracestate(written).ours == (VALUE,)
    assert len(written) <= LARGE_MEMBER
    assert "team-a" not in written
