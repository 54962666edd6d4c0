"""What the body of an inference request says that an admission asks about, and the same body for the provider.

It reads the request formats of OpenAI's Chat Completions and Responses, and of Anthropic's Messages. Pure.
"""

from collections.abc import Iterator

from tidegate_server.envoy.json_body import Edit, InvalidJson, JsonBody, JsonObject

MODALITIES = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "document": "file",
    "file": "file",
    "input_file": "file",
}
"""The types of content parts that are no text, and what they are."""

UNKNOWN_STATE = "unknown"
"""The request carries a provider's opaque state, and does not say whose."""

_STATEFUL_TYPES = frozenset({"item_reference", "redacted_thinking"})
_STATEFUL_FIELDS = ("encrypted_content", "signature")
_STATEFUL_MEMBERS = ("previous_response_id", "conversation")

MAX_PARTS = 100_000
"""Messages and content parts that are looked at: more is nobody's conversation, and would hold up everybody else's."""


class InferenceBody:
    """A request's body. Raises InvalidJson, with a message for the caller."""

    def __init__(self, body: bytes) -> None:
        self._json = JsonBody(body)
        self._reasoning = self._json.nested("reasoning")
        self._parts = list(_parts_of(self._json.value("messages"), self._json.value("input")))

    @property
    def model(self) -> str:
        """`model`; "" where there is none. Raises InvalidJson when it is no string."""
        return _text(self._json, "model")

    @property
    def worker_id(self) -> str:
        """`metadata.thread_id`, else `metadata.session_id`; "" where there is neither."""
        metadata = self._json.value("metadata")
        named = [metadata.get(name) for name in ("thread_id", "session_id")] if isinstance(metadata, dict) else []
        return next((value for value in named if isinstance(value, str)), "")

    @property
    def reasoning_effort(self) -> str:
        """`reasoning_effort` or `reasoning.effort`. Raises InvalidJson when the two differ."""
        flat = _text(self._json, "reasoning_effort")
        nested = _text(self._reasoning, "effort") if self._reasoning is not None else ""
        if flat and nested and flat != nested:
            raise InvalidJson("names two different reasoning efforts")
        return flat or nested

    @property
    def provider_state(self) -> str:
        """`unknown` when the request carries state that only the provider who made it can read; else ""."""
        carries = any(self._json.value(name) is not None for name in _STATEFUL_MEMBERS) or any(
            part.get("type") in _STATEFUL_TYPES or any(part.get(name) for name in _STATEFUL_FIELDS)
            for part in self._parts
        )
        return UNKNOWN_STATE if carries else ""

    @property
    def input_modalities(self) -> tuple[str, ...]:
        """What the input holds besides text; empty: text alone."""
        types = (part.get("type") for part in self._parts)
        return tuple(sorted({MODALITIES[kind] for kind in types if isinstance(kind, str) and kind in MODALITIES}))

    def for_provider(self, model: str, effort: str) -> bytes:
        """The body with the provider's name of the model and, unless it is "", this effort. No other byte differs.

        An effort that the body does not name yet is written where the body's format has it.
        """
        edits = [self._json.set("model", model)]
        return self._json.edited([*edits, *self._effort_edits(effort)] if effort else edits)

    def _effort_edits(self, effort: str) -> Iterator[Edit]:
        if self._reasoning is not None:
            yield self._reasoning.set("effort", effort)
        if "reasoning_effort" in self._json.members:
            yield self._json.set("reasoning_effort", effort)
        elif self._reasoning is None:
            # Only Responses has `input` in the place of `messages`.
            if "input" in self._json.members or "reasoning" in self._json.members:
                yield self._json.set("reasoning", {"effort": effort})
            else:
                yield self._json.set("reasoning_effort", effort)


def _parts_of(*roots: object) -> Iterator[dict[str, object]]:
    """Each message and each content part, at any depth of `content` and `output`."""
    todo, seen = list(roots), 0
    while todo:
        value = todo.pop()
        if isinstance(value, list):
            seen += len(value)
            if seen > MAX_PARTS:
                raise InvalidJson(f"has more than {MAX_PARTS} messages and content parts")
            todo.extend(value)
        elif isinstance(value, dict):
            yield value
            todo.extend((value.get("content"), value.get("output")))


def _text(where: JsonObject, name: str) -> str:
    value = where.value(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidJson(f"has {name}, which is no string")
    return value
