"""Whatever text comes in: nothing is raised, what goes out is legal, and nothing but our signature proves a hop."""

from hypothesis import given
from hypothesis import strategies as st
from tidegate_server.core.flow.ancestry import Keyring, sign, verify
from tidegate_server.core.flow.model import FlowKey, Signed, Unproved
from tidegate_server.core.flow.tracecontext import (
    MAX_LENGTH,
    MAX_MEMBERS,
    Traceparent,
    parse_traceparent,
    parse_tracestate,
    write_tracestate,
)

KEYS = Keyring((b"k" * 32, b"o" * 32))
HEX = "0123456789abcdef"
TRACE_IDS = st.text(HEX, min_size=32, max_size=32).filter(lambda text: text.strip("0"))
HOP_IDS = st.text(HEX, min_size=16, max_size=16).filter(lambda text: text.strip("0"))
MEMBERS = st.lists(
    st.one_of(
        st.from_regex(r"\A[a-z0-9][a-z0-9_*/@-]{0,20}=[!-+\--<>-~]{1,200}\Z"),
        st.sampled_from(["", " ", "tidegate=x", "tidegate", "FOO=1", "a=b=c", "=", "\t"]),
    ),
    max_size=40,
)


@given(st.one_of(st.text(), st.text("0123456789abcdefABF- \t\n", max_size=70)))
def test_any_traceparent_is_read_or_told_what_is_wrong(text: str) -> None:
    parsed = parse_traceparent(text)
    if isinstance(parsed, Traceparent):
        assert parse_traceparent(parsed.child("1" * 16)) == parsed._replace(parent_id="1" * 16)
    else:
        assert parsed


@given(st.one_of(st.text(), MEMBERS.map(",".join)))
def test_what_is_passed_on_is_legal_and_begins_with_ours(text: str) -> None:
    read = parse_tracestate(text)
    written = write_tracestate("value", read.others)
    assert len(written) <= MAX_LENGTH
    again = parse_tracestate(written)
    assert again.ours == ("value",)
    assert again.others == read.others[: len(again.others)] or len(",".join(read.others)) > MAX_LENGTH - 20
    assert len(read.others) - len(again.others) in (0, 1) or len(",".join(read.others)) > MAX_LENGTH - 20
    assert len(again.others) < MAX_MEMBERS


@given(
    TRACE_IDS,
    HOP_IDS,
    st.text(max_size=30),
    st.text(min_size=1, max_size=30),
    st.integers(0, 2**63),
    st.integers(0, 2**62),
)
def test_a_member_proves_what_was_signed(
    trace_id: str, hop_id: str, namespace: str, target: str, start: int, timeout: int
) -> None:
    key, hop = FlowKey(namespace, trace_id), Signed(hop_id, start, timeout)
    value = sign(KEYS, key, target, hop)
    assert verify(KEYS, key, target, (value,)) == hop
    assert verify(KEYS, key, target + "x", (value,)) is Unproved.BAD_MEMBER
    assert verify(KEYS, FlowKey(namespace + "x", trace_id), target, (value,)) is Unproved.BAD_MEMBER
    assert verify(Keyring((b"f" * 32,)), key, target, (value,)) is Unproved.BAD_MEMBER


@given(st.text(), st.text(min_size=1))
def test_no_text_is_a_proof(value: str, agent: str) -> None:
    assert verify(KEYS, FlowKey("default", "1" * 32), agent, (value,)) is Unproved.BAD_MEMBER
