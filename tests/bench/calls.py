"""The calls of a gateway against an equal handler on the same stack (§14 of the contract).

Run by `python -m tests.bench.calls`.
"""

import secrets
import tempfile
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import Message
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import flow_pb2, selection_pb2

from tests.bench import generator, serving
from tests.bench.generator import Load
from tests.bench.rounds import Ratio, in_turns, ratio

ADMIT = "/tidegate.v1.AdmissionService/Admit"
BATCH = "/tidegate.v1.AdmissionService/AdmitBatch"
ENTER = "/tidegate.v1.FlowService/EnterHop"
SELECT = "/tidegate.v1.SelectionService/SelectAgent"

WORKERS = 1_000
NEW = 400_000
BATCH_SIZE = 64


class Compared(NamedTuple):
    """One kind of call against its equal handler."""

    name: str
    per_second: Ratio
    cpu: Ratio
    ours: Load
    equal: Load


def admit(worker: str) -> wire.AdmitRequest:
    """An admission as a gateway asks for it."""
    return wire.AdmitRequest(
        model="managed/routine", worker_id=worker, request_bytes=48_123, reasoning_effort="high",
        request_id=secrets.token_hex(8),
    )  # fmt: skip


def batch(first: int) -> wire.AdmitBatchRequest:
    """An AdmitBatch of workers that are bound."""
    return wire.AdmitBatchRequest(requests=[admit(f"w{(first + n) % WORKERS}") for n in range(BATCH_SIZE)])


def hop() -> flow_pb2.EnterHopRequest:
    """The first hop of a flow of its own."""
    traceparent = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
    return flow_pb2.EnterHopRequest(traceparent=traceparent, target_agent="planner", reserve_tokens=100)


def compare(
    name: str,
    ours: serving.Server,
    directory: Path,
    method: str,
    requests: Path,
    answer: Message,
    *,
    begins: str = generator.ADMITTED,
    seconds: float = 1.5,
    in_flight: int = 32,
) -> Compared:
    """Measure both in turns."""
    with serving.equal(directory, method, answer.SerializeToString()) as other:

        def load(server: serving.Server) -> Load:
            return generator.run(server, method, requests, seconds=seconds, in_flight=in_flight, begins=begins)

        seen = in_turns(lambda: load(ours), lambda: load(other))
    compared = Compared(
        name,
        ratio([(a.per_second, b.per_second) for a, b in seen]),
        ratio([(a.cpu, b.cpu) for a, b in seen]),
        max(a for a, _ in seen),
        max(b for _, b in seen),
    )
    print(
        f"{name:12} calls/s {compared.per_second}, CPU {compared.cpu} of the equal handler's;"
        f" best {compared.ours.per_second:.0f} : {compared.equal.per_second:.0f} calls/s,"
        f" {compared.ours.cpu:.0f} : {compared.equal.cpu:.0f} µs"
    )
    return compared


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as place, serving.tidegate(Path(place)) as server:
        directory = Path(place)
        client = server.client()
        for n in range(WORKERS):
            client.admit("managed/routine", f"w{n}", 48_123).require()
        pinned = generator.write_requests(directory / "pinned", (admit(f"w{n}") for n in range(WORKERS)))
        fresh = generator.write_requests(directory / "fresh", (admit(f"n{n}") for n in range(NEW)))
        batches = generator.write_requests(directory / "batches", (batch(17 * n) for n in range(WORKERS)))
        hops = generator.write_requests(directory / "hops", (hop() for n in range(NEW)))
        one = client.admit("managed/routine", "w1", 48_123, reasoning_effort="high").response
        many = wire.AdmitBatchResponse(results=[wire.AdmitBatchResult(response=one)] * BATCH_SIZE)
        compare("pinned", server, directory, ADMIT, pinned, one)
        compare("new", server, directory, ADMIT, fresh, client.admit("managed/routine", "other", 48_123).response)
        compare("batch of 64", server, directory, BATCH, batches, many, begins="0a", in_flight=8)
        compare("EnterHop", server, directory, ENTER, hops, client.flows.enter_hop(hop()))
        query = selection_pb2.SelectAgentRequest(query="review the pull request")
        client.close()
        del query


if __name__ == "__main__":
    main()
