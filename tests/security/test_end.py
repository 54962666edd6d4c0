"""How a server ends: told to, as the first process of a container too, and killed at any moment (§11, §13)."""

import contextlib
import itertools
import os
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import admission_pb2_grpc as rpc
from tidegate.v1 import types_pb2

from tests.e2e.processes import TIDEGATE, Process, environment, served, write

MODEL = "qwen/qwen-next"
ROUTE = "managed/local"


def _may_have_own_processes() -> bool:
    """Whether this machine lets us make a PID namespace."""
    if shutil.which("unshare") is None:
        return False
    probe = [*UNSHARE, "true"]
    return subprocess.run(probe, check=False, capture_output=True).returncode == 0


UNSHARE = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.mark.skipif(not _may_have_own_processes(), reason="no PID namespaces here")
def test_sigterm_ends_the_first_process_of_a_container(tmp_path: Path) -> None:
    """The kernel ignores a signal that PID 1 has no handler for."""
    config = write(tmp_path)
    outer = subprocess.Popen(
        [*UNSHARE, TIDEGATE, "serve", "--config", str(config)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    try:
        assert outer.stdout is not None
        address = outer.stdout.readline().removeprefix("listening on ").strip()
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        assert len(children) == 1
        with grpc.insecure_channel(address) as channel:
            stub = rpc.AdmissionServiceStub(channel)
            watch: Any = health_pb2_grpc.HealthStub(channel)
            seen = watch.Watch(health_pb2.HealthCheckRequest())
            assert next(seen).status == health_pb2.HealthCheckResponse.SERVING
            admitted = stub.Admit(wire.AdmitRequest(model=MODEL, worker_id="w", request_bytes=1))
            assert admitted.verdict == types_pb2.VERDICT_BYPASSED
            began = time.monotonic()
            os.kill(int(children[0]), signal.SIGTERM)
            assert next(seen).status == health_pb2.HealthCheckResponse.NOT_SERVING
        outer.communicate(timeout=20)
        assert outer.returncode == 0
        assert time.monotonic() - began < 10  # the grace is 15 s
    finally:
        outer.kill()
        outer.communicate()


def test_what_was_decided_is_in_the_log_when_the_server_has_ended(tmp_path: Path) -> None:
    with served(write(tmp_path)) as server, grpc.insecure_channel(server.address) as channel:
        stub = rpc.AdmissionServiceStub(channel)
        for number in range(50):
            request = wire.AdmitRequest(model=ROUTE, worker_id=f"w{number}", request_bytes=1)
            stub.Admit(request, timeout=10)
        server.send(signal.SIGTERM)
        assert server.end() == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "state/decisions/decisions.db")) as log:
        assert log.execute("SELECT count(*) FROM decisions").fetchone() == (50,)


@pytest.mark.parametrize("answers", [1, 40, 200])
def test_killed_at_any_moment_nothing_that_was_answered_is_lost(tmp_path: Path, answers: int) -> None:
    """Eight callers bind workers while the server is killed; whoever got an answer, gets the same one again."""
    config = write(tmp_path)
    bound: list[str] = []
    with served(config) as server:
        healthy(server)
        enough = threading.Semaphore(0)
        threads = [threading.Thread(target=bind, args=(server.address, f"c{n}", bound, enough)) for n in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(answers):
            enough.acquire()
        server.kill()
        for thread in threads:
            thread.join()
    assert bound
    with served(config) as server, grpc.insecure_channel(server.address) as channel:
        stub = rpc.AdmissionServiceStub(channel)
        for worker in bound:
            asked = wire.PinRequest(model=ROUTE, worker_id=worker, mode=types_pb2.PIN_MODE_LOOKUP)
            found = stub.Pin(asked, timeout=10)
            assert found.pin_state == types_pb2.PIN_STATE_EXISTING, worker
        with server.client() as client:
            assert client.verify_pins().corrupt == 0


def healthy(server: Process) -> None:
    """Say that the engine works."""
    token = server.token_file.read_text().strip()
    value = types_pb2.Health(state=types_pb2.HEALTH_STATE_HEALTHY)
    fact = types_pb2.Observation(provider="qwen", age=Duration(), health=value)
    with grpc.insecure_channel(server.address) as channel:
        stub = rpc.AdmissionServiceStub(channel)
        report = wire.ReportCapacityRequest(collector_id="c", observations=[fact])
        told = stub.ReportCapacity(report, metadata=(("authorization", f"Bearer {token}"),), timeout=10)
        assert told.results[0].result == types_pb2.OBSERVATION_RESULT_ACCEPTED


def bind(address: str, caller: str, bound: list[str], answered: threading.Semaphore) -> None:
    """Bind one worker after the other until the server is gone; note those that were answered."""
    with grpc.insecure_channel(address) as channel:
        stub = rpc.AdmissionServiceStub(channel)
        for number in itertools.count():
            worker = f"{caller}-{number}"
            try:
                answer = stub.Admit(wire.AdmitRequest(model=ROUTE, worker_id=worker, request_bytes=1), timeout=5)
            except grpc.RpcError:
                return
            assert answer.verdict == types_pb2.VERDICT_ADMITTED
            bound.append(worker)
            answered.release()
