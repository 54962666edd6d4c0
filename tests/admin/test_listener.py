"""Where the HTTP side listens: HTTPS with certificates that rotate, unix sockets, and readiness to the end."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tidegate_server.admin import AdminApp
from tidegate_server.config import Tls
from tidegate_server.metrics import Rates
from tidegate_server.wiring.admin import admin_verbs, bind, serving
from tidegate_server.wiring.listeners import CannotListen

from tests.admin.scene import Http, admin
from tests.security.authority import Authority, Pair


def write(directory: Path, pair: Pair) -> Tls:
    certificate, key = directory / "server.pem", directory / "server.key"
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    return Tls.model_validate({"certificate": str(certificate), "key": str(key)})


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.pem.decode())


@asynccontextmanager
async def exposed(http: Http, tls: Tls) -> AsyncIterator[str]:
    """The same server's HTTP side as on an address that other machines reach; its base URL."""
    application, clock = http.served.application, http.served.clock
    verbs = admin_verbs(application, Rates(application.measures, clock), lambda: 1, clock)
    app = AdminApp(verbs, lambda: application.guard.identify, is_local=False)
    bound = bind(http.served.running.source.configuration)
    assert bound is not None
    port = bound.getsockname()[1]
    async with serving(app, bound, tls):
        yield f"https://localhost:{port}"


async def get(url: str, authority: Authority, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(verify=trusting(authority), headers=headers) as client:
        return await client.get(url)


async def test_an_address_that_others_reach_speaks_https_and_asks_everybody_who_they_are(tmp_path: Path) -> None:
    authority = Authority()
    async with admin(tmp_path) as http, exposed(http, write(tmp_path, authority.server())) as base:
        assert (await get(f"{base}/readyz", authority)).status_code == 200, (
            http.served.application.operator_verbs.status()
        )
        assert (await get(f"{base}/api/status", authority)).status_code == 401
        token = (tmp_path / "state" / "local.token").read_text().strip()
        assert (await get(f"{base}/api/status", authority, authorization=f"Bearer {token}")).status_code == 200
        with pytest.raises(httpx.HTTPError):
            async with httpx.AsyncClient() as client:
                await client.get(base.replace("https", "http") + "/readyz")


async def test_a_new_certificate_counts_for_the_next_connection_and_a_broken_one_never(tmp_path: Path) -> None:
    old, new = Authority("old"), Authority("new")
    async with admin(tmp_path) as http, exposed(http, write(tmp_path, old.server())) as base:
        assert (await get(f"{base}/healthz", old)).status_code == 200
        write(tmp_path, new.server())
        assert (await get(f"{base}/healthz", new)).status_code == 200
        with pytest.raises(httpx.ConnectError):
            await get(f"{base}/healthz", old)
        (tmp_path / "server.pem").write_text("broken")
        assert (await get(f"{base}/healthz", new)).status_code == 200


async def test_a_unix_socket_is_served_and_a_living_one_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    async with admin(tmp_path, admin={"listen": f"unix:{path}"}) as http:
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.get("/api/status")).status_code == 200
        with pytest.raises(CannotListen):
            bind(http.served.running.source.configuration)
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as client:
            assert (await client.get("http://localhost/healthz")).status_code == 200


async def test_a_server_that_drains_says_so_and_can_still_be_scraped(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        http.served.application.health.drain()
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.metrics())["tidegate_ready"] == 0
