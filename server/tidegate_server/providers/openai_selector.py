"""The structured choice of any OpenAI-compatible chat endpoint: `json_schema`, temperature 0, ids as an enum (§9)."""

from collections.abc import Mapping
from typing import Any

from tidegate_server.core.selection.choice import Ask
from tidegate_server.core.selection.model import Usage
from tidegate_server.errors import ProviderFailed
from tidegate_server.ports import Answer
from tidegate_server.providers.endpoint import Endpoint

_BODY_LIMIT = 1024 * 1024
_MOST_TOKENS = 1 << 53
"""More than any call has; an endpoint's number must not overflow a sum."""


class OpenAiSelector:
    """The port `Selector`."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self._endpoint = endpoint
        self._model = model

    @property
    def model(self) -> str:
        """The model's name as configured: that is what prices are kept by."""
        return self._model

    async def answer(self, ask: Ask) -> Answer:
        """The model's answer. ProviderFailed, with the tokens billed, for a refusal and for one without content."""
        payload = {
            "model": self._model,
            "messages": [dict(message) for message in ask.messages],
            "temperature": 0,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "agent_choice", "strict": True, "schema": dict(ask.schema)},
            },
        }
        return _read(await self._endpoint.post("/chat/completions", payload, limit=_BODY_LIMIT))

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()


def _read(body: Mapping[str, Any]) -> Answer:
    usage = _usage(body.get("usage"))
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise ProviderFailed("the endpoint's answer has no choice", tokens=usage)
    if message.get("refusal"):
        raise ProviderFailed("the model refused", tokens=usage)
    if choice.get("finish_reason") == "length":
        raise ProviderFailed("the model's answer was cut off", tokens=usage)
    if choice.get("finish_reason") == "content_filter":
        raise ProviderFailed("the endpoint's filter withheld the answer", tokens=usage)
    content = message.get("content")
    if not isinstance(content, str) or not content.strip():
        raise ProviderFailed("the model's answer has no content", tokens=usage)
    return Answer(content, usage)


def _usage(reported: object) -> Usage:
    if not isinstance(reported, dict):
        return Usage()
    return Usage(_tokens(reported.get("prompt_tokens")), _tokens(reported.get("completion_tokens")))


def _tokens(number: object) -> int:
    return min(number, _MOST_TOKENS) if type(number) is int and number > 0 else 0
