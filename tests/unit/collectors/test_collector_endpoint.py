"""The small HTTP server: what it answers, and what it cuts off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import httpx
import pytest
from tidegate_collectors.endpoint import Answer, Endpoint, Request
from tidegate_collectors.payload import MAX_BODY
from tidegate_collectors.presets import ALIASES, PRESETS, find


async def echo(request: Request) -> Answer:
    return Answer(200, request.body + request.headers["x-name"].encode(), "text/plain")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with AsyncExitStack() as stack:
        server = await Endpoint({("POST", "/echo"): echo}).start("127.0.0.1:0")
        stack.callback(server.close)
        yield server.sockets[0].getsockname()[1]


async def test_routes_methods_and_bodies(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
        answer = await http.post("/echo?x=1", content=b"body ", headers={"X-Name": "name"})
        assert (answer.status_code, answer.text, answer.headers["content-type"]) == (200, "body name", "text/plain")
        assert (await http.get("/echo")).status_code == 405
        assert (await http.get("/other")).status_code == 404


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"NOT HTTP\r\n\r\n", b"400"),
        (b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", b"400"),
        (
            b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY + 1) + b"x" * (MAX_BODY + 1),
            b"413",
        ),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", b"431"),
    ],
    ids=["no http", "bad length", "too long a body", "too long a head"],
)
async def test_what_is_no_request_is_refused(port: int, sent: bytes, status: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    answer = b""
    with suppress(ConnectionResetError):  # what was not read when it closed makes the close a reset
        answer = await reader.read()
    writer.close()
    assert not answer or answer.split()[1] == status


async def test_a_connection_that_says_nothing_and_goes_is_no_error(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    await writer.wait_closed()
    await test_routes_methods_and_bodies(port)


async def test_only_this_machine_is_listened_on() -> None:
    with pytest.raises(ValueError, match="not on this machine"):
        await Endpoint({}).start("0.0.0.0:0")


def test_every_alias_names_a_preset() -> None:
    for alias, name in ALIASES.items():
        assert find(alias) is PRESETS[name]
        assert alias not in PRESETS
    assert find("LlamaCpp") is find("llama_cpp") is PRESETS["llamacpp"]
    with pytest.raises(KeyError, match="there are: vllm"):
        find("vlm")
