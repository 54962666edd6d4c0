"""Four times as many calls in flight as the peak needs: what is left of it, and how soon health answers (§13).

Run by `python -m tests.bench.overload`. Every answer is checked: one that is no admission ends the measurement.
"""

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.bench import generator, serving
from tests.bench.calls import ADMIT, admit
from tests.bench.generator import Load
from tests.bench.rounds import in_turns, ratio

IN_FLIGHT = (8, 16, 32, 64, 128)
"""The numbers of calls at once among which the peak is looked for."""

WORKERS = 1_000
TIMES = 4
KEPT_AT_LEAST = 0.8
HEALTH_P99_AT_MOST = 0.1
PEAK_ENOUGH = 0.97
"""The smallest number in flight that gives this much of the best is what the peak needs."""

SECONDS = 2.0


class Probe(threading.Thread):
    """Asks for health on a connection of its own, every 10 ms, until it is told to stop."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.took: list[float] = []
        self._address = address
        self._stopped = threading.Event()

    def run(self) -> None:
        """Ask and note the time of each answer, in seconds; every one must say SERVING."""
        with grpc.insecure_channel(self._address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            while not self._stopped.wait(0.01):
                began = time.perf_counter()
                answer = health.Check(health_pb2.HealthCheckRequest(service="tidegate.v1.AdmissionService"), timeout=5)
                self.took.append(time.perf_counter() - began)
                if answer.status != health_pb2.HealthCheckResponse.SERVING:
                    raise RuntimeError("health says that it does not serve")

    def p99(self) -> float:
        """Stop; of all times the 99th of a hundred."""
        self._stopped.set()
        self.join()
        return sorted(self.took)[int(len(self.took) * 0.99)]


def main() -> int:
    """Print the ratios; 1 when one misses its aim."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name, serving.tidegate(Path(name)) as server:
        requests = generator.write_requests(Path(name) / "requests", (admit(f"w{n}") for n in range(WORKERS)))
        generator.run(server, ADMIT, requests)  # binds the workers
        loads = {calls: generator.run(server, ADMIT, requests, in_flight=calls) for calls in IN_FLIGHT}
        best = max(load.per_second for load in loads.values())
        needed = min(calls for calls, load in loads.items() if load.per_second >= PEAK_ENOUGH * best)
        probe = Probe(server.address)
        probe.start()
        turns = in_turns(
            lambda: _measured(server, requests, TIMES * needed), lambda: _measured(server, requests, needed)
        )
        health = probe.p99()
    kept = ratio([(over.per_second, peak.per_second) for over, peak in turns])
    over, peak = turns[len(turns) // 2]
    print(f"peak              {peak.per_second:8.0f} admissions/s with {needed} in flight, p99 {peak.p99 / 1e3:.1f} ms")
    print(
        f"{TIMES} times as many   {over.per_second:8.0f} admissions/s, p99 {over.p99 / 1e3:.1f} ms, all of them right"
    )
    print(f"kept              {kept} of the peak (at least {KEPT_AT_LEAST})")
    print(f"health p99        {health * 1e3:.1f} ms (at most {HEALTH_P99_AT_MOST * 1e3:.0f}), {len(probe.took)} checks")
    return int(kept.median < KEPT_AT_LEAST or health > HEALTH_P99_AT_MOST)


def _measured(server: serving.Server, requests: Path, in_flight: int) -> Load:
    return generator.run(server, ADMIT, requests, seconds=SECONDS, in_flight=in_flight)


if __name__ == "__main__":
    raise SystemExit(main())
