"""No secret leaves the server: planted ones are looked for in everything that it says (§11, §13 of the contract)."""

import asyncio
import json
import logging
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tidegate_server.config.load import parse
from tidegate_server.stores.memory_facts import MemoryFactStore
from tidegate_server.stores.sqlite_agents import SqliteAgentStore
from tidegate_server.stores.sqlite_pins import SqlitePinStore
from tidegate_server.wiring.redaction import HIDDEN, RedactingFormatter, secrets_of

from tests.e2e import processes
from tests.fuzz.calls import METHODS, calls_seeds, method_of
from tests.fuzz.test_seeds import changed
from tests.integration.server.harness import CONFIG, Served, serving
from tests.integration.server.test_health_and_drain import LIST

PASSWORD = "planted-pass-word"
DSN = f"postgresql://tide:{PASSWORD}@db.internal:5432/pins"
API_KEY = "planted-api-key-value"
FAULT = f"cannot connect to {DSN} with {API_KEY} from /var/lib/planted-path"

SELECTION = {
    "shortlistThreshold": 2,
    "chat": {"baseUrl": "http://127.0.0.1:9/v1", "apiKey": "env:PLANTED_API_KEY", "model": "m"},
    "embeddings": {"baseUrl": "http://127.0.0.1:9/v1", "apiKey": "env:PLANTED_API_KEY", "model": "m"},
}


def planted(server: Served) -> dict[str, bytes]:
    """What must not be said, by what it is."""
    state = server.directory / "state"
    keys = {path.name: path.read_bytes() for path in state.rglob("*.key")}
    assert len(keys) >= 2
    return {
        "password": PASSWORD.encode(),
        "api key": API_KEY.encode(),
        "planted path": b"planted-path",
        "own path": str(server.directory).encode(),
        "local token": (state / "local.token").read_bytes().strip(),
        **keys,
        **{f"{name} in hex": key.hex().encode() for name, key in keys.items()},
    }


def assert_silent(said: object, secrets: dict[str, bytes]) -> None:
    """None of the secrets is in what was said."""
    text = said if isinstance(said, bytes) else repr(said).encode()
    assert not [name for name, secret in secrets.items() if secret in text], text[:2000]


async def everything_said(server: Served, name: str, request: bytes) -> bytes:
    """All that a caller gets back for that request: messages, details, trailers."""
    found = method_of(name)
    channel: Any = server.channel
    try:
        if not found.server_streaming:
            return bytes(await channel.unary_unary(name)(request, metadata=server.metadata, timeout=10))
        if found.client_streaming:
            call = channel.stream_stream(name)(metadata=server.metadata, timeout=10)
            await call.write(request)
            await call.done_writing()
            return await _all(call)
        return await _all(channel.unary_stream(name)(request, metadata=server.metadata, timeout=0.1))
    except grpc.aio.AioRpcError as error:
        return repr((error.details(), tuple(error.trailing_metadata() or ()))).encode()
    except asyncio.InvalidStateError:  # it was ended before all was written
        return await _all(call)


async def _all(call: Any) -> bytes:
    said = b""
    try:
        while (read := await call.read()) is not grpc.aio.EOF:
            said += read
    except grpc.aio.AioRpcError as error:
        said += repr((error.details(), tuple(error.trailing_metadata() or ()))).encode()
    return said


@pytest.fixture(params=["everything works", "the stores fail with driver texts"])
def stores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two worlds: in the second one every store raises an error that is full of secrets."""
    monkeypatch.setenv("PLANTED_API_KEY", API_KEY)
    if request.param == "everything works":
        return

    async def fails(*_: object, **__: object) -> None:
        raise RuntimeError(FAULT)

    for kind, names in (
        (SqlitePinStore, ("get", "put", "list")),
        (SqliteAgentStore, ("list", "put", "get")),
        (MemoryFactStore, ("put", "clear")),
    ):
        for name in names:
            if hasattr(kind, name):
                monkeypatch.setattr(kind, name, fails)


@pytest.mark.usefixtures("stores")
async def test_no_answer_to_any_request_holds_a_secret(tmp_path: Path) -> None:
    async with serving(tmp_path, selection=SELECTION) as server:
        secrets = planted(server)
        source = random.Random(7)
        seeds = list(calls_seeds())
        for data in [*seeds, *(changed(source, source.choice(seeds)) for _ in range(60))]:
            if data:
                said = await everything_said(server, METHODS[data[0] % len(METHODS)], data[1:])
                assert_silent(said, secrets)
        statuses = await server.health.List(LIST)
        assert_silent(statuses.SerializeToString(), secrets)
        channel: Any = server.channel
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = stub.ServerReflectionInfo()
        for symbol in ("tidegate.v1.OperatorService", f"nobody.{PASSWORD[:3]}"):
            await asked.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
            assert_silent((await asked.read()).SerializeToString(), secrets)
        asked.cancel()


BROKEN: dict[str, Any] = {
    "a store": {"stores": {"durable": f"postgres!//tide:{PASSWORD}@h/d", "live": f"valkey://:{PASSWORD}@h:x"}},
    "a credential": {
        "providers": {"qwen": {"kind": "local", "credential": f"sk-{PASSWORD}", "models": {"m": {"contextWindow": 1}}}}
    },
    "an api key": {"selection": {"chat": {"baseUrl": f"http://u:{PASSWORD}@h", "apiKey": PASSWORD, "model": "m"}}},
    "a certificate": {"tls": {"certificate": "/planted-path/a", "key": "/planted-path/b"}},
}


@pytest.mark.parametrize("what", [*BROKEN, "no file at all"])
async def test_the_status_tells_what_is_wrong_with_a_configuration_and_nothing_that_it_holds(
    tmp_path: Path, what: str
) -> None:
    async with serving(tmp_path) as server:
        secrets = planted(server)
        path = tmp_path / "tidegate.json"
        if what in BROKEN:
            server.write({**CONFIG, **BROKEN[what]})
        else:
            path.unlink()
        await server.running.reload()
        status = await server.status()
        assert status.configuration_error
        assert_silent(status.SerializeToString(), secrets)


def test_a_log_line_hides_what_the_process_knows_to_be_secret() -> None:
    configuration = parse(json.dumps(_with_stores()), {})
    secrets = secrets_of(configuration, {"OPENROUTER_API_KEY": API_KEY, "OTHER": "other"})
    assert secrets == {"p%40ss-word", "p@ss-word", API_KEY}
    formatter = RedactingFormatter(logging.Formatter("%(message)s"), secrets)
    try:
        raise RuntimeError(f"{API_KEY} and p@ss-word")
    except RuntimeError as error:
        info = (type(error), error, error.__traceback__)
        line = formatter.format(logging.LogRecord("n", 40, "f", 1, "at %s", ("p%40ss-word",), info))
    assert "ss-word" not in line
    assert API_KEY not in line
    assert line.count(HIDDEN) == 4  # the line of code in the traceback, too


def test_what_is_too_short_to_be_a_secret_is_left_in() -> None:
    formatter = RedactingFormatter(logging.Formatter("%(message)s"), ["a", "", "12345"])
    assert formatter.format(logging.LogRecord("n", 40, "f", 1, "a 12345", (), None)) == "a 12345"


def _with_stores() -> dict[str, Any]:
    stores = {"durable": "postgresql://u:p%40ss-word@h/d", "live": "valkey://h:1"}
    return {**CONFIG, "stores": stores, "keys": {"pins": "/k", "tracestate": ["/t"]}}


def test_a_server_that_cannot_reach_its_stores_says_no_password(tmp_path: Path) -> None:
    for name in ("pins.key", "trace.key"):
        (tmp_path / name).write_bytes(os.urandom(32))
        (tmp_path / name).chmod(0o600)
    config = processes.write(
        tmp_path,
        stores={"durable": f"postgresql://tide:{PASSWORD}@127.0.0.1:9/d", "live": f"valkey://:{PASSWORD}@127.0.0.1:9"},
        keys={"pins": str(tmp_path / "pins.key"), "tracestate": [str(tmp_path / "trace.key")]},
    )
    process = subprocess.Popen(
        [processes.TIDEGATE, "serve", "--config", str(config), "--log-level", "debug"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=processes.environment(),
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=4)
    except subprocess.TimeoutExpired:
        process.terminate()
        said, _ = process.communicate(timeout=30)
    assert said
    assert PASSWORD.encode() not in said
