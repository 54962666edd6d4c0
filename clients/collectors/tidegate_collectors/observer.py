"""What a gateway's own responses tell: a library, and a local endpoint for gateways in other languages.

Only status, headers and what the gateway chooses to hand over of the body are seen. Nothing is kept of them but facts.
"""

import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from tidegate import CredentialError, TokenFile

from tidegate_collectors.clock import Clock
from tidegate_collectors.endpoint import Answer, Request
from tidegate_collectors.facts import Reading, Source, failure, merged
from tidegate_collectors.payload import Malformed, Response, decode, mapping, text
from tidegate_collectors.presets import Parse
from tidegate_collectors.vocabulary import record

PATH = "/v1/responses"
SILENT = 20
"""Successful responses without a fact, one after the other, after which an account is warned of: a header may have
another name by now, or a proxy takes it away."""

_log = logging.getLogger("tidegate.collector")


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One collector that is handed responses."""

    source: Source
    parse: Parse
    publish: Callable[[Reading, Source], Awaitable[None]]


class Observer:
    """Takes responses of providers, by the providers' aliases."""

    def __init__(self, observed: list[Observed], clock: Clock) -> None:
        self._clock = clock
        self._silence: dict[str, int] = {}
        self._by_provider: dict[str, list[Observed]] = {}
        for each in observed:
            self._by_provider.setdefault(each.source.provider, []).append(each)

    async def observe(
        self, provider: str, status: int, headers: Mapping[str, str], body: bytes = b"", *, model: str = ""
    ) -> Reading:
        """Read a response that has just arrived, and tell the server what it says.

        Args:
            provider: alias of the account that was called.
            status: its HTTP status.
            headers: its headers; names in any case.
            body: of an error all, of a success as much as is at hand (the first event of a stream is enough).
            model: the model that was asked for, as the provider spells it.
        """
        collectors = self._by_provider.get(provider, [])
        if not collectors:
            return failure(f"no collector observes {provider}")
        response = Response(body, self._clock.now(), status, {name.lower(): value for name, value in headers.items()})
        readings = []
        for each in collectors:
            source = replace(each.source, model=model or each.source.model)
            readings.append(each.parse(response, source))
            await each.publish(readings[-1], source)
        reading = merged(readings)
        self._listen(provider, told=bool(reading.facts) or not response.ok)
        return reading

    def _listen(self, provider: str, *, told: bool) -> None:
        self._silence[provider] = 0 if told else self._silence.get(provider, 0) + 1
        if self._silence[provider] == SILENT:
            _log.warning("%s: %d responses in a row told nothing of its limits", provider, SILENT)


def handler(observer: Observer, token: TokenFile) -> Callable[[Request], Awaitable[Answer]]:
    """Return the endpoint's handler of POST /v1/responses: only who shows the token may feed facts (§13)."""

    async def post(request: Request) -> Answer:
        shown = request.headers.get("authorization", "")
        try:
            wanted = f"Bearer {token.read()}"
        except CredentialError:
            return Answer(503, _json({"error": "the endpoint's own token cannot be read"}))
        if not hmac.compare_digest(shown.encode(), wanted.encode()):
            return Answer(401, _json({"error": "a bearer token is needed"}))
        try:
            handed = mapping(decode(request.body))
        except Malformed as error:
            return Answer(400, _json({"error": str(error)}))
        status, headers = handed.get("status"), handed.get("headers")
        if not isinstance(status, int) or isinstance(status, bool) or not 100 <= status <= 599:
            return Answer(400, _json({"error": "status: an HTTP status is needed"}))
        if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
            return Answer(400, _json({"error": "headers: an object of texts is needed"}))
        reading = await observer.observe(
            text(handed.get("provider")),
            status,
            {name: str(value) for name, value in headers.items()},
            text(handed.get("body")).encode(),
            model=text(handed.get("model")),
        )
        return Answer(200, _json({"facts": [record(fact) for fact in reading.facts], "error": reading.error or None}))

    return post


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
