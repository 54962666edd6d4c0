"""Asking: how often, how much, how long, and what is never told."""

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from tidegate_collectors.auth import Auth, Secret, SecretError, fingerprint
from tidegate_collectors.payload import MAX_BODY
from tidegate_collectors.poll import Fetcher, PollError, Refused

NOW = datetime(2026, 10, 20, 12, tzinfo=UTC)


class Standing:
    """A clock that stands, and notes who wanted to wait."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def monotonic(self) -> float:
        return sum(self.waited)

    def now(self) -> datetime:
        return NOW

    async def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)


def fetcher(handler: object, clock: Standing) -> Fetcher:
    return Fetcher(clock, lambda: 0.0, httpx.MockTransport(handler))  # type: ignore[arg-type]


async def get(answer: httpx.Response | Exception, url: str = "https://api.example/x") -> object:
    def handler(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return await fetcher(handler, Standing()).get(url, headers={"authorization": "Bearer s3cret"}, timeout=5)


async def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(302, headers={"location": "https://elsewhere.example/"})

    response = await fetcher(handler, Standing()).get("https://api.example/x", headers={}, timeout=5)
    assert response.status == 302
    assert asked == ["https://api.example/x"]


async def test_a_body_over_1_mib_is_an_error() -> None:
    assert await get(httpx.Response(200, content=b"x" * MAX_BODY))
    with pytest.raises(PollError, match="more than 1 MiB"):
        await get(httpx.Response(200, content=b"x" * (MAX_BODY + 1)))


async def test_one_host_is_asked_once_a_second_whoever_asks() -> None:
    clock = Standing()
    polling = fetcher(lambda request: httpx.Response(200), clock)
    for path in ("a", "b", "c"):
        await polling.get(f"https://api.example/{path}", headers={}, timeout=5)
    await polling.get("https://other.example/", headers={}, timeout=5)
    assert clock.waited == [1.0, 1.0]


async def test_an_engine_on_this_machine_may_be_asked_at_any_time() -> None:
    clock = Standing()
    polling = fetcher(lambda request: httpx.Response(200), clock)
    for path in ("a", "b"):
        await polling.get(f"http://127.0.0.1:8000/{path}", headers={}, timeout=5)
    assert clock.waited == []


async def test_a_connection_that_fails_is_tried_once_more() -> None:
    tries: list[int] = []

    def handler(request: httpx.Request) -> httpx.Response:
        tries.append(1)
        raise httpx.ConnectError("no")

    with pytest.raises(Refused, match="nobody answers"):
        await fetcher(handler, Standing()).get("https://api.example/x", headers={}, timeout=5)
    assert len(tries) == 2


@pytest.mark.parametrize(
    "error", [httpx.ReadError("s3cret"), httpx.ConnectError("s3cret"), httpx.RemoteProtocolError("s3cret")]
)
async def test_no_error_holds_a_secret_or_a_payload(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tidegate")
    with pytest.raises(PollError) as caught:
        await get(error, "https://user:s3cret@api.example/x?key=s3cret")
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in caplog.text


async def test_a_slow_answer_ends_in_time() -> None:
    async def handler(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(PollError, match="no whole answer within"):
        await fetcher(handler, Standing()).get("https://api.example/x", headers={}, timeout=0.01)


def test_a_secret_is_read_from_its_place_and_named_by_it(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    file.write_text('{"claudeAiOauth": {"accessToken": "tok"}}')
    assert Secret(env="KEY").read({"KEY": " tok\n"}) == "tok"
    assert Secret(file=str(file), member="claudeAiOauth.accessToken").read() == "tok"
    for secret, fault in (
        (Secret(env="KEY"), "KEY"),
        (Secret(file=str(tmp_path / "gone")), "gone"),
        (Secret(file=str(file), member="claudeAiOauth.refresh"), "claudeAiOauth.refresh"),
    ):
        with pytest.raises(SecretError, match=fault) as caught:
            secret.read({})
        assert "tok" not in str(caught.value).replace("accessToken", "")


def test_a_secret_that_no_header_can_carry_is_refused_without_showing_it() -> None:
    with pytest.raises(SecretError) as caught:
        Secret(env="KEY").read({"KEY": "a\r\nx-evil: 1"})
    assert "evil" not in str(caught.value)


def test_credentials_are_told_apart_by_a_fingerprint_that_holds_nothing_of_them() -> None:
    one = Auth(bearer_env="A").show({"A": "first"})
    other = Auth(bearer_env="A").show({"A": "second"})
    assert fingerprint(one) == fingerprint(dict(one))
    assert fingerprint(one) != fingerprint(other)
    assert "first" not in fingerprint(one)
