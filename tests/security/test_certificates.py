"""Certificates: who is who by mTLS, and what changes when the files change (§13 of the contract)."""

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import admission_pb2_grpc as rpc
from tidegate.v1 import flow_pb2, flow_pb2_grpc, operator_pb2, operator_pb2_grpc
from tidegate_server.errors import ConfigurationError
from tidegate_server.wiring.credentials import UnusableCertificates
from tidegate_server.wiring.run import Running

from tests.integration.server.harness import Json, bearer, identity
from tests.security.authority import Authority, Files, Pair, channel
from tests.security.serving import BINDABLE, address, ends, running

SPIFFE, DNS, CN = "spiffe://tide.test/edge", "edge.tide.test", "edge"

IDENTITIES: list[Json] = [
    {"name": "by-spiffe", "role": "gateway", "spiffeId": SPIFFE},
    {"name": "by-dns", "role": "operator", "dns": DNS},
    {"name": "by-cn", "role": "viewer", "commonName": CN},
    {"name": "a-collector", "role": "collector", "commonName": "gpu", "providers": ["qwen"]},
    identity("token", "operator"),
]


class Mutual(NamedTuple):
    """A server that wants certificates, who signed them, and its files."""

    server: Running
    servers: Authority
    clients: Authority
    files: Files

    def channel(self, client: Pair | None) -> grpc.aio.Channel:
        """A new connection."""
        return channel(address(self.server), self.servers, client)

    async def role(self, client: Pair | None, metadata: Sequence[tuple[str, str]] = ()) -> str:
        """What such a client may do, or the status that it ends with."""
        async with self.channel(client) as own:
            return await role_of(own, metadata)


async def role_of(own: grpc.aio.Channel, metadata: Sequence[tuple[str, str]] = ()) -> str:
    """The role that the calls show which pass; else the status of the last."""
    admission: rpc.AdmissionServiceAsyncStub = rpc.AdmissionServiceStub(own)
    operator: operator_pb2_grpc.OperatorServiceAsyncStub = operator_pb2_grpc.OperatorServiceStub(own)
    flows: flow_pb2_grpc.FlowServiceAsyncStub = flow_pb2_grpc.FlowServiceStub(own)
    more: Any = {"metadata": metadata, "timeout": 10}
    admitted = wire.AdmitRequest(model=BINDABLE, worker_id="w", request_bytes=1)
    if await ends(admission.Admit(admitted, **more)) == "OK":
        return "gateway"
    if await ends(operator.GetStatus(operator_pb2.GetStatusRequest(), **more)) == "OK":
        return "operator"
    status = await ends(flows.ListFlows(flow_pb2.ListFlowsRequest(), **more))
    return "viewer" if status == "OK" else status


@asynccontextmanager
async def mutual(directory: Path, identities: list[Json] = IDENTITIES, **settings: Any) -> AsyncIterator[Mutual]:
    """A server with TLS on both sides."""
    servers, clients, files = Authority("servers"), Authority("clients"), Files(directory)
    files.write(servers.server(), clients)
    async with running(directory, tls=files.mutual, identities=identities, **settings) as server:
        yield Mutual(server, servers, clients, files)


async def test_a_certificate_is_known_by_its_spiffe_id_then_its_dns_name_then_its_common_name(tmp_path: Path) -> None:
    async with mutual(tmp_path) as at:
        client = at.clients.client
        assert await at.role(client(CN, uris=[SPIFFE], dns=[DNS])) == "gateway"
        assert await at.role(client(CN, dns=["other.test", DNS])) == "operator"
        assert await at.role(client(CN, dns=[DNS.upper()])) == "operator"
        assert await at.role(client(CN)) == "viewer"
        assert await at.role(client("nobody")) == "UNAUTHENTICATED"


async def test_a_name_of_one_kind_is_no_name_of_another(tmp_path: Path) -> None:
    async with mutual(tmp_path) as at:
        client = at.clients.client
        assert await at.role(client(SPIFFE)) == "UNAUTHENTICATED"
        assert await at.role(client(DNS)) == "UNAUTHENTICATED"
        assert await at.role(client("x", dns=[CN])) == "UNAUTHENTICATED"
        assert await at.role(client("x", uris=[SPIFFE.replace("spiffe:", "https:")])) == "UNAUTHENTICATED"
        assert await at.role(client("x", uris=[SPIFFE + "/deeper"])) == "UNAUTHENTICATED"


async def test_a_certificate_with_two_spiffe_ids_has_none(tmp_path: Path) -> None:
    async with mutual(tmp_path) as at:
        assert await at.role(at.clients.client("x", uris=[SPIFFE, "spiffe://tide.test/b"])) == "UNAUTHENTICATED"


async def test_a_token_counts_before_the_certificate_of_its_connection(tmp_path: Path) -> None:
    async with mutual(tmp_path) as at:
        pair = at.clients.client(CN)
        assert await at.role(pair, bearer("token-token")) == "operator"
        assert await at.role(pair, bearer("wrong")) == "UNAUTHENTICATED"


async def test_no_certificate_no_connection(tmp_path: Path) -> None:
    async with mutual(tmp_path) as at:
        assert await at.role(None, bearer("token-token")) == "UNAVAILABLE"
        assert await at.role(Authority("strangers").client(CN)) == "UNAVAILABLE"
        assert await at.role(at.clients.client(CN, expired=True)) == "UNAVAILABLE"
        async with grpc.aio.insecure_channel(address(at.server)) as plain:
            assert await role_of(plain, bearer("token-token")) == "UNAVAILABLE"
        assert await at.role(at.clients.client(CN)) == "viewer"


async def test_a_rotated_certificate_key_and_authority_are_used_from_the_next_connection_on(tmp_path: Path) -> None:
    async with mutual(tmp_path) as at:
        old = at.clients.client("gpu")
        async with at.channel(old) as own, at.channel(old) as watching:
            feed = Feed(own)
            await feed.welcomed()
            health: Any = health_pb2_grpc.HealthStub(watching)
            watch = health.Watch(health_pb2.HealthCheckRequest())
            await watch.read()

            servers, clients = Authority("new servers"), Authority("new clients")
            at.files.write(servers.server(), clients)
            now = at._replace(servers=servers, clients=clients)
            assert await now.role(clients.client(CN)) == "viewer"
            assert await at.role(clients.client(CN)) == "UNAVAILABLE"  # who trusts only the old servers
            assert await now.role(old) == "UNAVAILABLE"  # its authority was removed

            await feed.heard(1)  # what was open stays open
            assert not watch.done()


DAMAGES = [(which, how) for which in ("certificate", "key", "client_ca") for how in ("half", "empty", "gone")]


@pytest.mark.parametrize(("which", "how"), [*DAMAGES, ("certificate", "of another"), ("key", "of another")])
async def test_files_that_are_not_usable_leave_the_last_good_ones_in_force(
    tmp_path: Path, which: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with mutual(tmp_path) as at:
        path: Path = getattr(at.files, which)
        good = path.read_bytes()
        other = at.servers.server()
        damaged = {"half": good[: len(good) // 2], "empty": b"", "of another": getattr(other, which, b"")}
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(damaged[how])
        assert await at.role(at.clients.client(CN)) == "viewer"
        assert await at.role(Authority("strangers").client(CN)) == "UNAVAILABLE"
        assert await at.role(None) == "UNAVAILABLE"  # above all: no authority is not "everybody"
        warned = [record.getMessage() for record in caplog.records if record.name == "tidegate.credentials"]
        assert len(warned) == 1
        assert str(tmp_path) not in warned[0]
        assert any("tls: " in line for line in await warnings(at))

        path.write_bytes(good)
        assert await at.role(at.clients.client(CN)) == "viewer"
        assert not any("tls: " in line for line in await warnings(at))


async def warnings(at: Mutual) -> list[str]:
    """What GetStatus warns of."""
    async with at.channel(at.clients.client("x", dns=[DNS])) as own:
        stub: operator_pb2_grpc.OperatorServiceAsyncStub = operator_pb2_grpc.OperatorServiceStub(own)
        return list((await stub.GetStatus(operator_pb2.GetStatusRequest())).warnings)


@pytest.mark.parametrize("which", ["certificate", "key", "client_ca"])
async def test_a_server_does_not_start_with_files_that_are_not_usable(tmp_path: Path, which: str) -> None:
    files, authority = Files(tmp_path), Authority()
    files.write(authority.server(), authority)
    getattr(files, which).write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA")
    with pytest.raises(UnusableCertificates, match="tls"):
        async with running(tmp_path, tls=files.mutual):
            pass


async def test_tls_without_clients_certificates_takes_tokens(tmp_path: Path) -> None:
    files, authority = Files(tmp_path), Authority()
    files.write(authority.server())
    async with (
        running(tmp_path, tls=files.setting, identities=[identity("token", "operator")]) as server,
        channel(address(server), authority) as own,
    ):
        assert await role_of(own, bearer("token-token")) == "operator"
        assert await role_of(own) == "UNAUTHENTICATED"


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "gateway.internal:0"])
async def test_an_address_that_others_reach_needs_tls_or_consent(tmp_path: Path, listen: str) -> None:
    with pytest.raises(ConfigurationError, match="needs tls, or insecure: true"):
        async with running(tmp_path, listen=listen):
            pass


async def test_consent_to_plaintext_opens_no_method_without_a_credential(tmp_path: Path) -> None:
    async with (
        running(tmp_path, listen="0.0.0.0:0", insecure=True) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.addresses[0].port}") as own,
    ):
        assert await role_of(own) == "UNAUTHENTICATED"
        token = (tmp_path / "state" / "local.token").read_text().strip()
        assert await role_of(own, bearer(token)) == "gateway"


async def test_a_token_is_kept_as_its_hash_only(tmp_path: Path) -> None:
    async with mutual(tmp_path) as at:
        known = at.server.application.guard._identify._tokens
        assert [digest for digest, _ in known] == [hashlib.sha256(b"token-token").digest()]


class Feed:
    """One open CapacityFeed of the collector `gpu`."""

    def __init__(self, own: grpc.aio.Channel, metadata: Sequence[tuple[str, str]] = ()) -> None:
        stub: rpc.AdmissionServiceAsyncStub = rpc.AdmissionServiceStub(own)
        self.call: Any = stub.CapacityFeed(metadata=metadata)

    async def welcomed(self) -> None:
        """Say hello."""
        hello = wire.Hello(collector_id="c", providers=["qwen"])
        await self.call.write(wire.CapacityFeedRequest(hello=hello))
        assert (await self.call.read()).HasField("welcome")

    async def heard(self, sequence: int) -> None:
        """Send an empty batch, see it acknowledged."""
        await self.call.write(wire.CapacityFeedRequest(batch=wire.Batch(sequence=sequence)))
        assert (await self.call.read()).ack.sequence == sequence
