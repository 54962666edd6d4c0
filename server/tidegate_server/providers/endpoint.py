"""One JSON endpoint over HTTP that is trusted with nothing: not with its status, its size, its pace or its form.

httpx and not a vendor's SDK: an SDK retries on its own and sleeps for as long as the endpoint tells it to, reads
answers of any size, and is one more thing to keep. Here a call is one request, its answer is bounded while it arrives,
and the caller's deadline cancels it.
"""

import json
from collections.abc import Mapping
from typing import Any

import httpx

from tidegate_server.errors import ProviderFailed

_TIMEOUTS = httpx.Timeout(30.0, connect=5.0, pool=5.0)
"""Above the stages' own deadlines, which cancel: only so that a call that nobody waits for does not stay for ever."""

_LIMITS = httpx.Limits(max_connections=64, max_keepalive_connections=8)


class Rejected(ProviderFailed):
    """The endpoint answered with a status other than 200."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the endpoint answered with status {status}")
        self.status = status


class Endpoint:
    """`base_url` as in `https://api.example.com/v1`; `api_key` goes in a request's authorization, and nowhere else."""

    def __init__(self, base_url: str, api_key: str = "", *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        self._base_url = base_url.rstrip("/")
        self._client = httpx.AsyncClient(headers=headers, timeout=_TIMEOUTS, limits=_LIMITS, transport=transport)

    async def post(self, path: str, payload: Mapping[str, Any], *, limit: int) -> Mapping[str, Any]:
        """The JSON object that the endpoint answers with, of at most `limit` bytes. Raises ProviderFailed."""
        try:
            async with self._client.stream("POST", f"{self._base_url}{path}", json=payload) as response:
                if response.status_code != 200:
                    raise Rejected(response.status_code)
                body = await _read(response, limit)
        except httpx.TimeoutException as error:
            raise ProviderFailed("the endpoint did not answer in time") from error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise ProviderFailed("the endpoint could not be reached, or broke off") from error
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ProviderFailed("the endpoint's answer is no JSON") from error
        if not isinstance(answer, dict):
            raise ProviderFailed("the endpoint's answer is no JSON object")
        return answer

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


async def _read(response: httpx.Response, limit: int) -> bytes:
    """The body, refused as soon as it is known to be too large. Compressed ones, which were not asked for, are, too."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ProviderFailed("the endpoint's answer is compressed, which was not asked for")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > limit:
            raise ProviderFailed(f"the endpoint's answer is over {limit} bytes")
    return bytes(body)
