"""Health and admissions while others press: large batches, an endpoint that never answers, short deadlines."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import admission_pb2_grpc as rpc
from tidegate.v1 import selection_pb2, selection_pb2_grpc, types_pb2
from tidegate_server.rpc.feed_stream import MAX_BATCH_BYTES

from tests.e2e.processes import Process, served, write

MODEL = "qwen/qwen-next"
CHECKS = 200


@pytest.fixture
def silent() -> Iterator[str]:
    """An endpoint that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


@pytest.fixture
def server(tmp_path: Path, silent: str) -> Iterator[Process]:
    """A server whose agent selection asks that endpoint."""
    chat = {"baseUrl": silent, "model": "m"}
    with served(write(tmp_path, selection={"shortlistThreshold": 2, "chat": chat})) as process:
        yield process


def stubs(channel: grpc.Channel) -> tuple[Any, Any, Any]:
    """Admission, selection, health."""
    return (
        rpc.AdmissionServiceStub(channel),
        selection_pb2_grpc.SelectionServiceStub(channel),
        health_pb2_grpc.HealthStub(channel),
    )


def token(server: Process) -> tuple[tuple[str, str], ...]:
    """The local token as metadata."""
    return (("authorization", f"Bearer {server.token_file.read_text().strip()}"),)


def register(server: Process, agents: int) -> None:
    """Some agents to choose from."""
    with grpc.insecure_channel(server.address) as channel:
        _, selection, _ = stubs(channel)
        for number in range(agents):
            agent = selection_pb2.Agent(agent_id=f"a{number}", name=f"agent {number}", description="does things")
            selection.RegisterAgent(selection_pb2.RegisterAgentRequest(agent=agent), metadata=token(server), timeout=10)


def large_batch() -> wire.Batch:
    """Nearly as many bytes as a batch may have."""
    name = "w" * 250
    items = [
        types_pb2.Observation(
            provider="qwen", quota=types_pb2.Quota(window=f"{name}{i:04}", scope=name, remaining_percent=1)
        )
        for i in range(1_000)
    ]
    batch = wire.Batch(sequence=1, observations=items)
    assert MAX_BATCH_BYTES / 2 < batch.ByteSize() < MAX_BATCH_BYTES
    return batch


def feed(server: Process, stop: threading.Event) -> None:
    """Send large batches, one after the other, as soon as each is acknowledged."""
    batch = wire.CapacityFeedRequest(batch=large_batch())

    def said() -> Iterator[wire.CapacityFeedRequest]:
        yield wire.CapacityFeedRequest(hello=wire.Hello(collector_id="large", providers=["qwen"]))
        while not stop.is_set():
            yield batch
            acknowledged.acquire(timeout=10)

    acknowledged = threading.Semaphore(0)
    with grpc.insecure_channel(server.address) as channel:
        admission, _, _ = stubs(channel)
        for answer in admission.CapacityFeed(said(), metadata=token(server)):
            if answer.HasField("ack"):
                acknowledged.release()


@pytest.mark.parametrize("p99", [1.0, pytest.param(0.1, marks=pytest.mark.soak)])
def test_health_and_admissions_answer_beside_large_batches_and_an_endpoint_that_hangs(
    server: Process, p99: float
) -> None:
    """The limit of 100 ms is for a machine that does nothing else; on any other, nothing may stand still."""
    register(server, 5)
    stop = threading.Event()
    with grpc.insecure_channel(server.address) as channel, ThreadPoolExecutor(12) as pool:
        admission, selection, health = stubs(channel)
        feeding = pool.submit(feed, server, stop)
        ask = selection_pb2.SelectAgentRequest(query="who", session_id="s")
        hanging = [pool.submit(selection.SelectAgent, ask, timeout=30) for _ in range(10)]
        took = []
        for number in range(CHECKS):
            began = time.perf_counter()
            answer = health.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=5)
            took.append(time.perf_counter() - began)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            bypass = wire.AdmitRequest(model=MODEL, worker_id=f"w{number}", request_bytes=1)
            assert admission.Admit(bypass, timeout=5).verdict == types_pb2.VERDICT_BYPASSED
        stop.set()
        feeding.result()
        assert all(call.result().fallback_used for call in hanging)  # each after its own deadline, never in error
    assert sorted(took)[int(CHECKS * 0.99)] < p99


def test_a_short_deadline_is_answered_or_refused_inside_it(server: Process) -> None:
    """A selector that would take 10 s, a caller that gives 50 ms."""
    register(server, 5)
    with grpc.insecure_channel(server.address) as channel:
        _, selection, _ = stubs(channel)
        selection.ListAgents(selection_pb2.ListAgentsRequest(), timeout=10)  # connected
        began = time.perf_counter()
        call = selection.SelectAgent.future(selection_pb2.SelectAgentRequest(query="q", session_id="s"), timeout=0.05)
        assert call.code() in {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED}
        assert time.perf_counter() - began < 1
