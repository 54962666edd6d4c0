"""The body for the provider: the model's value and the mapped effort are replaced, and not one other byte."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_server.envoy.inference_body import InferenceBody
from tidegate_server.envoy.json_body import InvalidJson, JsonBody

ODD = (
    ' \r\n\t{"a": 1.0e2, "n" :null, "deep":[[[{"model":"inner"}]]],'
    '"text":"„model“: \\"model\\": \\u00e9 \\ud83d\\ude00 待機 {[\\\\",'
    '"mod\\u0065l"  :\t"managed\\/routine" , "z":{"model":1,"effort":"x"}}\n '
)


def test_the_value_of_model_is_replaced_and_every_other_byte_stays() -> None:
    body = InferenceBody(ODD.encode())
    assert body.model == "managed/routine"
    assert body.for_provider("qwen-next", "").decode() == ODD.replace('"managed\\/routine"', '"qwen-next"')


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"model":"m","reasoning_effort":"high"}', '{"model":"M","reasoning_effort":"low"}'),
        ('{"reasoning_effort": null, "model":"m"}', '{"reasoning_effort": "low", "model":"M"}'),
        ('{"model":"m","reasoning":{"effort":"high","summary":"auto"}}',
         '{"model":"M","reasoning":{"effort":"low","summary":"auto"}}'),
        ('{"model":"m", "reasoning": { }}', '{"model":"M", "reasoning": {"effort": "low" }}'),
        ('{"reasoning":{"a":"auto"},"model":"m"}', '{"reasoning":{"effort": "low", "a":"auto"},"model":"M"}'),
        ('{"model":"m","reasoning":null}', '{"model":"M","reasoning":{"effort": "low"}}'),
        ('{"model":"m","reasoning":{"effort":"high"},"reasoning_effort":"high"}',
         '{"model":"M","reasoning":{"effort":"low"},"reasoning_effort":"low"}'),
        ('{"model":"m","messages":[]}', '{"reasoning_effort": "low", "model":"M","messages":[]}'),
        ('{ "model":"m","input":"hi"}', '{"reasoning": {"effort": "low"},  "model":"M","input":"hi"}'),
    ],
)  # fmt: skip
def test_a_mapped_effort_goes_where_the_format_has_it(before: str, after: str) -> None:
    assert InferenceBody(before.encode()).for_provider("M", "low").decode() == after


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no JSON object"),
        (b"null", "no JSON object"),
        (b'["model"]', "no JSON object"),
        (b'"model"', "no JSON object"),
        (b'\xef\xbb\xbf{"model":"m"}', "no JSON object"),
        (b'{"model":"m"', "lacks a ','"),
        (b'{"model":"m"}}', "behind its JSON object"),
        (b'{"model":"m"} {}', "behind its JSON object"),
        (b'{"model":"m",}', "no JSON at character 13"),
        (b"{'model':'m'}", "no JSON at character 1"),
        (b'{1:"m"}', "name is no string"),
        (b'{"model" "m"}', "lacks a ':'"),
        (b'{"model":"m","n":NaN}', "NaN"),
        (b'{"model":"m","n":[-Infinity]}', "-Infinity"),
        (b'{"model":"m","n":01}', "lacks a ','"),
        (b'{"model":"a\nb"}', "no JSON at character"),
        (b'{"model":"m","model":"n"}', '"model" twice'),
        (b'{"model":"m","mod\\u0065l":"n"}', '"model" twice'),
        (b'{"model":"m","reasoning":{"effort":"low","effort":"high"}}', '"effort" twice'),
        (b'{"model":"\xff"}', "not UTF-8"),
        (b'{"model":"\xed\xa0\x80"}', "not UTF-8"),
        (b"{" + b",".join(b'"%d":0' % i for i in range(1_001)) + b"}", "more than 1000 members"),
        (b'{"messages":[' + b"{}," * 100_000 + b"{}]}", "more than 100000 messages"),
        (b'{"input":[{"content":[' + b"0," * 99_999 + b"0]}]}", "more than 100000 messages"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_what_cannot_be_understood_in_one_way_only_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(InvalidJson, match=why):
        InferenceBody(body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"model":17}', "model, which is no string"),
        (b'{"model":"m","reasoning_effort":1}', "reasoning_effort, which is no string"),
        (b'{"model":"m","reasoning":{"effort":[]}}', "effort, which is no string"),
        (b'{"model":"m","reasoning_effort":"low","reasoning":{"effort":"high"}}', "two different"),
    ],
)
def test_a_member_of_another_kind_is_refused(body: bytes, why: str) -> None:
    found = InferenceBody(body)
    with pytest.raises(InvalidJson, match=why):
        assert not (found.model and found.reasoning_effort)


def test_a_whole_number_of_a_million_digits_costs_nothing() -> None:
    assert InferenceBody(b'{"model":"m","n":' + b"9" * 1_000_000 + b"}").model == "m"


@pytest.mark.parametrize(
    ("content", "modalities"),
    [
        ('"plain"', ()),
        ('[{"type":"text","text":"a"}]', ()),
        ('[{"type":"image_url","image_url":{"url":"data:"}},{"type":"text"}]', ("image",)),
        ('[{"type":"input_audio"},{"type":"input_file"},{"type":"input_image"}]', ("audio", "file", "image")),
        ('[{"type":"tool_result","content":[{"type":"image"}]}]', ("image",)),
        ('[{"type":"tool_use","input":{"type":"image"}}]', ()),
    ],
)
def test_what_the_input_holds(content: str, modalities: tuple[str, ...]) -> None:
    for body in ('{"messages":[{"role":"user","content":%s}]}', '{"input":[{"content":%s}]}'):
        assert InferenceBody((body % content).encode()).input_modalities == modalities


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ('{"input":"a"}', ""),
        ('{"previous_response_id":null}', ""),
        ('{"previous_response_id":"resp_1"}', "unknown"),
        ('{"conversation":{"id":"c"}}', "unknown"),
        ('{"input":[{"type":"reasoning","encrypted_content":null}]}', ""),
        ('{"input":[{"type":"reasoning","encrypted_content":"gAAA"}]}', "unknown"),
        ('{"input":[{"type":"item_reference","id":"r"}]}', "unknown"),
        ('{"messages":[{"content":[{"type":"thinking","thinking":"a","signature":"s"}]}]}', "unknown"),
        ('{"messages":[{"content":[{"type":"redacted_thinking","data":"s"}]}]}', "unknown"),
    ],
)
def test_a_providers_opaque_state_is_seen(body: str, state: str) -> None:
    assert InferenceBody(body.encode()).provider_state == state


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.dictionaries(st.text(), values, max_size=5),
    st.text(),
    st.sampled_from([None, 2]),
    st.booleans(),
    st.sampled_from([(",", ":"), (" , ", " : ")]),
)
def test_whatever_else_the_body_holds_only_the_model_changes(
    others: dict[str, object], name: str, indent: int | None, ascii_only: bool, separators: tuple[str, str]
) -> None:
    keys = [*others, "model"]
    document = {**others, "model": name}
    texts = {k: json.dumps(document[k], indent=indent, ensure_ascii=ascii_only, separators=separators) for k in keys}

    def body(model: str) -> str:
        members = (
            f"{json.dumps(k, ensure_ascii=ascii_only)}{separators[1]}{model if k == 'model' else texts[k]}"
            for k in keys
        )
        return "{" + separators[0].join(members) + "}"

    sent = body(texts["model"]).encode("utf-8", "surrogatepass")
    try:
        sent.decode()
    except UnicodeDecodeError:
        with pytest.raises(InvalidJson):
            JsonBody(sent)
        return
    parsed = JsonBody(sent)
    assert {k: m.value for k, m in parsed.members.items()} == json.loads(sent, parse_int=float)
    assert parsed.edited([parsed.set("model", "bound")]) == body('"bound"').encode()
