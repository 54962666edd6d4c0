"""grpc-health-probe, as Kubernetes runs it: every service by name, a plaintext port beside mTLS, and the drain."""

import subprocess
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidegate.v1 import admission_pb2, admission_pb2_grpc

from tests.conformance.clients import ROOT, go_binary
from tests.gateways.processes import free_address, tidegate
from tests.gateways.test_connections import CONFIG, secured

NAMES = ("", "liveness", "readiness", *(
    f"tidegate.v1.{name}Service" for name in ("Admission", "Flow", "Selection", "Operator")
))  # fmt: skip
NO_ANSWER = 3
"""The probe's exit code where the call itself failed: nobody there, or a service that the server does not know."""


class Probed(NamedTuple):
    """What a probe said."""

    code: int
    text: str


def probe(address: str, service: str = "", *options: str) -> Probed:
    """Run the probe once."""
    tools = ROOT / "tests/gateways/tools"
    binary = go_binary(tools, "github.com/grpc-ecosystem/grpc-health-probe", "grpc-health-probe")
    command = [
        str(binary),
        f"-addr={address}",
        f"-service={service}",
        "-connect-timeout=5s",
        "-rpc-timeout=5s",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return Probed(done.returncode, done.stdout + done.stderr)


def test_every_service_by_its_name(tmp_path: Path) -> None:
    with tidegate(CONFIG, tmp_path) as server:
        for name in NAMES:
            assert probe(server.address, name).code == 0, name
        unknown = probe(server.address, "tidegate.v1.NoSuchService")
        assert unknown.code == NO_ANSWER
        assert "NotFound" in unknown.text


def test_a_plaintext_port_for_probes_beside_mtls(tmp_path: Path) -> None:
    _, config = secured(tmp_path, dns="edge.example")
    config["health"] = {"listen": free_address()}
    with tidegate(config, tmp_path) as server:
        for name in NAMES:
            assert probe(config["health"]["listen"], name).code == 0, name
        assert probe(server.address).code != 0, "the port of the service speaks TLS only"
        with grpc.insecure_channel(config["health"]["listen"]) as channel:
            stub = admission_pb2_grpc.AdmissionServiceStub(channel)
            for call in (
                lambda: stub.Admit(admission_pb2.AdmitRequest(model="qwen-next"), timeout=5),
                lambda: stub.Capacity(admission_pb2.CapacityRequest(), timeout=5),
            ):
                with pytest.raises(grpc.RpcError) as caught:
                    call()
                assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            reflection: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
                "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            )
            with pytest.raises(grpc.RpcError) as caught:
                next(reflection(iter([b""]), timeout=5))
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_drain_is_seen_before_anything_stops(tmp_path: Path) -> None:
    """A Watch, as a load balancer keeps it: NOT_SERVING comes while the connection stands; then nobody is there."""
    with tidegate(CONFIG, tmp_path) as server:
        with grpc.insecure_channel(server.address) as channel:
            request = health_pb2.HealthCheckRequest(service="tidegate.v1.AdmissionService")
            watch = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=30)  # type: ignore[attr-defined]
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            server.stop()
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert server.process.returncode == 0
        assert probe(server.address).code != 0
