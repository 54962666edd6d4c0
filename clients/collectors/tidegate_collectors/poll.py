"""Asks a provider over HTTP: GET only, no redirects, at most 1 MiB, at most so long, and not more often than it likes.

What goes wrong is a `PollError` that says what and where, and holds nothing of the answer and nothing of a secret.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random
from tidegate.credentials import is_local

from tidegate_collectors.clock import Clock
from tidegate_collectors.payload import MAX_BODY, Response

HOST_INTERVAL = 1.0
"""Seconds between two requests to one host of another machine, whoever asks."""
_ATTEMPTS = 2
_JITTER = 0.25


class PollError(Exception):
    """An answer could not be had. A collector's own error: no fact."""


class Refused(PollError):
    """Nobody listens there: an engine that is down, or one that has not begun to."""


class Fetcher:
    """One HTTP client for all collectors of a process."""

    def __init__(
        self, clock: Clock, draw: Callable[[], float] = random.random, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._clock = clock
        self._draw = draw
        # `trust_env` off: neither a proxy nor a .netrc of the environment is to see or to change a request.
        self._http = httpx.AsyncClient(follow_redirects=False, trust_env=False, transport=transport)
        self._free_at: dict[str, float] = {}

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def get(self, url: str, *, headers: Mapping[str, str], timeout: float) -> Response:  # noqa: ASYNC109 - as a whole
        """Get a page within `timeout` seconds; one more attempt where the connection failed."""
        return await self._ask("GET", url, headers, None, timeout)

    async def post(self, url: str, *, headers: Mapping[str, str], json: object, timeout: float) -> Response:  # noqa: ASYNC109
        """Post one request, once: the canary's (§6 of the contract)."""
        return await self._ask("POST", url, headers, json, timeout)

    async def _ask(self, method: str, url: str, headers: Mapping[str, str], json: object, limit: float) -> Response:
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(httpx.ConnectError),
            stop=stop_after_attempt(_ATTEMPTS if method == "GET" else 1),
            wait=wait_random(0, _JITTER),
            sleep=self._clock.sleep,
            reraise=True,
        )
        where = _where(url)
        try:
            async with asyncio.timeout(limit):
                await self._turn(url)
                async for attempt in attempts:
                    with attempt:
                        return await self._once(method, url, headers, json)
        except TimeoutError:
            raise PollError(f"{where}: no whole answer within {limit:g} s") from None
        except httpx.ConnectError:
            raise Refused(f"{where}: nobody answers") from None
        except httpx.HTTPError as error:
            raise PollError(f"{where}: {type(error).__name__}") from None
        except (httpx.InvalidURL, UnicodeError):
            raise PollError(f"{where}: not a URL or header that can be sent") from None
        raise AssertionError("the loop ends by a return or an error")

    async def _once(self, method: str, url: str, headers: Mapping[str, str], json: object) -> Response:
        async with self._http.stream(method, url, headers=dict(headers), json=json, timeout=None) as response:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_BODY:
                    raise PollError(f"{_where(url)}: more than 1 MiB")
            names = {name.lower(): value for name, value in response.headers.items()}
            return Response(bytes(body), self._clock.now(), response.status_code, names)

    async def _turn(self, url: str) -> None:
        """Wait until the host may be asked again. Engines on this machine may be asked at any time."""
        host = urlsplit(url).netloc
        if is_local(_with_port(host)):
            return
        now = self._clock.monotonic()
        at = max(now, self._free_at.get(host, now))
        self._free_at[host] = at + HOST_INTERVAL * (1 + _JITTER * self._draw())
        if at > now:
            await self._clock.sleep(at - now)


def _with_port(host: str) -> str:
    return host if host.rpartition(":")[2].isdigit() else f"{host}:0"


def _where(url: str) -> str:
    """Return a URL without what could be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"
