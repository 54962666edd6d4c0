"""TLS, mTLS, tokens and unix sockets: how each client connects, and that no failure of it forwards."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.clients import KINDS, Kind, started
from tests.gateways.certificates import Pair, authority, signed
from tests.gateways.processes import Served, free_address, tidegate

CONFIG: dict[str, Any] = {
    "providers": {"qwen": {"kind": "local", "credential": "none", "models": {"qwen-next": {"contextWindow": 131072}}}},
    "managedRouting": {"routes": {}},
}
REQUEST = {"model": "qwen-next", "workerId": "w", "requestBytes": 10}
TOKEN = "a-token-of-the-edge"


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    """The client under test."""
    chosen: Kind = request.param
    return chosen


async def ask(kind: Kind, server: str, directory: Path, variables: dict[str, str] | None = None) -> dict[str, Any]:
    """One admission by a client that is started for it."""
    async with started(kind, server, directory, variables=variables or {}) as runner:
        return await runner.ask("admit", request=REQUEST, timeout=5)


def secured(directory: Path, **identity: Any) -> tuple[Pair, dict[str, Any]]:
    """An authority, and a configuration with a server's certificate of it and one identity."""
    ca = authority(directory)
    server = signed(ca, directory, "server", "DNS:tidegate.example")
    tls = {"certificate": str(server.certificate), "key": str(server.key), "clientCa": str(ca.certificate)}
    return ca, {**CONFIG, "tls": tls, "identities": [{"name": "edge", "role": "gateway", **identity}]}


async def test_mtls(kind: Kind, tmp_path: Path) -> None:
    ca, config = secured(tmp_path, dns="edge.example")
    client = signed(ca, tmp_path, "client", "DNS:edge.example")
    stranger = signed(ca, tmp_path, "stranger", "DNS:stranger.example")
    other = authority(tmp_path, "other")
    name = {"TIDEGATE_SERVER_NAME": "tidegate.example"}
    with tidegate(config, tmp_path) as server:
        good = await ask(kind, server.address, tmp_path, {**name, **files(ca, client)})
        assert good["forward"], good
        for what, variables in {
            "a certificate of nobody": {**name, **files(ca, stranger)},
            "no certificate": {**name, **files(ca)},
            "another authority": {**name, **files(other, client)},
            "another name": {"TIDEGATE_SERVER_NAME": "other.example", **files(ca, client)},
            "no TLS": {},
        }.items():
            bad = await ask(kind, server.address, tmp_path, variables)
            assert not bad["forward"], what
            assert bad["error"]["status"] in {"UNAUTHENTICATED", "UNAVAILABLE"}, (what, bad)


async def test_a_token_over_tls_and_its_rotation(kind: Kind, tmp_path: Path) -> None:
    ca, config = secured(tmp_path, tokenSha256=hashlib.sha256(TOKEN.encode()).hexdigest())
    del config["tls"]["clientCa"]
    token = tmp_path / "token"
    token.write_text("an-older-token\n")
    variables = {"TIDEGATE_SERVER_NAME": "tidegate.example", **files(ca)}
    with tidegate(config, tmp_path) as server:
        async with started(kind, server.address, tmp_path, token, variables=variables) as runner:
            wrong = await runner.ask("admit", request=REQUEST, timeout=5)
            assert wrong["error"] == {"status": "UNAUTHENTICATED", "reason": "CREDENTIAL_INVALID", "fields": []}
            token.write_text(f"{TOKEN}\n")
            assert (await runner.ask("admit", request=REQUEST, timeout=5))["forward"]
            for text in ("", "two tokens\n"):
                token.write_text(text)
                assert not (await runner.ask("admit", request=REQUEST, timeout=5))["forward"]
            token.unlink()
            assert not (await runner.ask("admit", request=REQUEST, timeout=5))["forward"]


async def test_a_unix_socket(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with tidegate(CONFIG, tmp_path, "--listen", f"unix:{path}"):
        assert (await ask(kind, f"unix:{path}", tmp_path))["forward"]


async def test_a_token_never_goes_out_in_clear_to_another_machine(kind: Kind, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with pytest.raises((AssertionError, BrokenPipeError, ConnectionResetError)):  # the client was not even made
        await ask(kind, "192.0.2.1:50051", tmp_path, {"TIDEGATE_TOKEN_FILE": str(token)})


async def test_a_server_that_comes_back_is_found_again(kind: Kind, tmp_path: Path) -> None:
    address = free_address()
    listen = ("--listen", address)
    async with started(kind, address, tmp_path) as runner:
        for _ in range(2):
            with tidegate(CONFIG, tmp_path, *listen) as server:
                assert (await runner.ask("admit", request=REQUEST, timeout=10))["forward"]
                stop(server)
            assert not (await runner.ask("admit", request=REQUEST, timeout=0.5))["forward"]


def stop(server: Served) -> None:
    """SIGTERM; nothing is left of it."""
    server.stop()
    assert server.process.returncode == 0


def files(ca: Pair, client: Pair | None = None) -> dict[str, str]:
    """What a runner is told of certificates."""
    own = {"TIDEGATE_CERTIFICATE": str(client.certificate), "TIDEGATE_KEY": str(client.key)} if client else {}
    return {"TIDEGATE_CA": str(ca.certificate), **own}
