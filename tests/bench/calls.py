"""The calls of a gateway against an equal handler on the same stack (§14 of the contract).

Run by `python -m tests.bench.calls`.
"""

import secrets
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from google.protobuf.message import Message
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import flow_pb2, selection_pb2

from tests.bench import generator, results, serving
from tests.bench.rounds import Ratio, in_turns, ratio

ADMIT = "/tidegate.v1.AdmissionService/Admit"
BATCH = "/tidegate.v1.AdmissionService/AdmitBatch"
ENTER = "/tidegate.v1.FlowService/EnterHop"
SELECT = "/tidegate.v1.SelectionService/SelectAgent"

WORKERS = 1_000
NEW = 100_000
BATCH_SIZE = 64


AIMS = {"pinned": 0.90, "new": 0.5, "EnterHop": 0.8, "half load, p99": 1.5, "batch : unary": 8.0}
"""§14 of the contract and what was set out with it; "half load" is an upper limit, the others are lower ones."""

Figures = dict[str, Any]


class Bench:
    """One server of ours, with what is asked of it."""

    def __init__(self, server: serving.Server, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.figures: Figures = {}

    def requests(self, name: str, requests: Iterable[Message]) -> Path:
        """A file of requests."""
        return generator.write_requests(self.directory / name, requests)

    def compare(self, name: str, method: str, requests: Path, answer: Message, **options: Any) -> None:
        """Measure ours and the equal handler in turns."""
        with serving.equal(self.directory, method, answer.SerializeToString()) as equal:
            seen = in_turns(
                lambda: generator.run(self.server, method, requests, **options),
                lambda: generator.run(equal, method, requests, **options),
            )
        if name.startswith("half"):
            self.keep(name, ratio([(a.p99, b.p99) for a, b in seen]), ours=seen[-1][0].p99, equal=seen[-1][1].p99)
            return
        self.keep(
            name,
            ratio([(a.per_second, b.per_second) for a, b in seen]),
            ours=median(a.per_second for a, _ in seen),
            equal=median(b.per_second for _, b in seen),
            cpu=ratio([(a.cpu, b.cpu) for a, b in seen]),
            ours_cpu=median(a.cpu for a, _ in seen),
            equal_cpu=median(b.cpu for _, b in seen),
        )

    def keep(self, name: str, found: Ratio, **more: Any) -> None:
        """Print and keep."""
        rest = ", ".join(
            f"{key.replace('_', ' ')} {value if isinstance(value, Ratio) else round(value)}"
            for key, value in more.items()
        )
        aim = f" (aim {AIMS[name]})" if name in AIMS else ""
        print(f"{name:16} {found}{aim}: {rest}", flush=True)
        self.figures[name] = {"ratio": found._asdict()} | {
            key: value._asdict() if isinstance(value, Ratio) else value for key, value in more.items()
        }


def admit(worker: str) -> wire.AdmitRequest:
    """An admission as a gateway asks for it."""
    return wire.AdmitRequest(
        model="managed/routine",
        worker_id=worker,
        request_bytes=48_123,
        reasoning_effort="high",
        request_id=secrets.token_hex(8),
    )


def batch(first: int) -> wire.AdmitBatchRequest:
    """An AdmitBatch of workers that are bound."""
    return wire.AdmitBatchRequest(requests=[admit(f"w{(first + n) % WORKERS}") for n in range(BATCH_SIZE)])


def hop() -> flow_pb2.EnterHopRequest:
    """The first hop of a flow of its own."""
    traceparent = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
    return flow_pb2.EnterHopRequest(traceparent=traceparent, target_agent="planner", reserve_tokens=100)


def bind_workers(server: serving.Server) -> wire.AdmitResponse:
    """Bind `WORKERS` workers; an answer that one of them gets."""
    with server.client() as client:
        for n in range(WORKERS):
            client.admit("managed/routine", f"w{n}", 48_123).require()
        return client.admit("managed/routine", "w1", 48_123, reasoning_effort="high").response


def compare_admissions(bench: Bench) -> None:
    """Pinned, new, at half load, in batches."""
    one = bind_workers(bench.server)
    pinned = bench.requests("pinned", (admit(f"w{n}") for n in range(WORKERS)))
    batches = bench.requests("batches", (batch(17 * n) for n in range(WORKERS)))
    bench.compare("pinned", ADMIT, pinned, one)
    rate = bench.figures["pinned"]["ours"] / 2
    bench.compare("half load, p99", ADMIT, pinned, one, rate=rate, seconds=2.5)
    fresh = bench.requests("fresh", (admit(f"n{n}") for n in range(NEW)))
    bench.compare("new", ADMIT, fresh, one)
    many = wire.AdmitBatchResponse(results=[wire.AdmitBatchResult(response=one)] * BATCH_SIZE)
    bench.compare("batch of 64", BATCH, batches, many, begins="0a", in_flight=8)
    seen = in_turns(
        lambda: generator.run(bench.server, BATCH, batches, begins="0a", in_flight=8).per_second * BATCH_SIZE,
        lambda: generator.run(bench.server, ADMIT, pinned).per_second,
    )
    bench.keep("batch : unary", ratio(seen), batch=median(a for a, _ in seen), unary=median(b for _, b in seen))


def compare_others(bench: Bench) -> None:
    """EnterHop, and SelectAgent with twelve agents and no provider."""
    with bench.server.client() as client:
        entered = client.flows.enter_hop(hop())
        for n in range(12):
            agent = selection_pb2.Agent(name=f"agent-{n}", description=f"does the {n}th thing", skills=["things"])
            client.agents.register(selection_pb2.RegisterAgentRequest(agent=agent))
        query = selection_pb2.SelectAgentRequest(query="do the seventh thing")
        selected = client.agents.select(query)
    # On a machine that stalls for 200 ms, FLOW_GUARD_UNAVAILABLE is the right answer.
    hops = bench.requests("hops", (hop() for _ in range(NEW)))
    bench.compare("EnterHop", ENTER, hops, entered, most_bad=0.1)
    bench.compare("SelectAgent", SELECT, bench.requests("queries", [query]), selected, begins="0a")


def main() -> int:
    """Measure, print and keep; 1 when an aim was missed."""
    with tempfile.TemporaryDirectory() as place, serving.tidegate(Path(place)) as server:
        bench = Bench(server, Path(place))
        compare_admissions(bench)
        compare_others(bench)
    results.save("calls", bench.figures)
    found = {name: bench.figures[name]["ratio"]["median"] for name in AIMS}
    return int(any(found[name] > aim if name.startswith("half") else found[name] < aim for name, aim in AIMS.items()))


if __name__ == "__main__":
    raise SystemExit(main())
