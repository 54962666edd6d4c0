"""Ten minutes of the shared mode under load while workers and both primaries are killed at random.

No pin is lost or made twice, no flow exceeds its limits, nobody pays without evidence, and everything is back within
30 s each time. SOAK_SECONDS makes it longer or shorter, SOAK_SEED chooses another history.
"""

import asyncio
import os
import random
import signal
import time
from collections import defaultdict
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
from tidegate import AsyncClient
from tidegate.errors import TidegateError
from tidegate.v1 import types_pb2
from tidegate_server.stores.postgres.migrate import migrate

from tests.support.replicas import CONFIG, ROUTE, Place, Process, hop, quota, replica, until
from tests.support.servers import Postgres, Valkey, running

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
SEED = int(os.environ.get("SOAK_SEED", "7"))
RECOVERED = 30.0
FAN_OUT, TOKENS = 12, 100

PAID: dict[str, Any] = {
    **CONFIG["providers"],
    "openrouter": {
        "kind": "paid",
        "credential": "env:OPENROUTER_API_KEY",
        "models": {"deepseek/deepseek-v4-flash": {"alias": "or-deepseek", "contextWindow": 163840}},
    },
}
ROUTES: dict[str, Any] = {
    "routes": {
        ROUTE: {
            **CONFIG["managedRouting"]["routes"][ROUTE],
            "candidates": ["claude/sonnet", "codex/sol", "or-deepseek"],
            "allowPaid": True,
        }
    }
}


def balance() -> types_pb2.Observation:
    """A paid account that can pay."""
    observation = types_pb2.Observation(provider="openrouter")
    observation.age.FromNanoseconds(0)
    observation.balance.currency = "USD"
    observation.balance.amount = "5"
    observation.balance.available = True
    return observation


class Soak:
    """The load, and what it has seen."""

    def __init__(self, replicas: list[Process], rng: random.Random) -> None:
        self.replicas = replicas
        self.rng = rng
        self.end = time.monotonic() + SECONDS
        self.bound: dict[str, str] = {}
        self.granted: defaultdict[str, set[str]] = defaultdict(set)
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.number = 0

    def client(self) -> AsyncClient:
        """A fresh connection to a replica, and so to a worker, by chance."""
        return self.rng.choice(self.replicas).client(timeout=3)

    async def load(self) -> None:
        """One caller after the other until the end."""
        while time.monotonic() < self.end:
            try:
                async with self.client() as client:
                    for _ in range(self.rng.randint(1, 20)):
                        await self.rng.choice((self.admit, self.admit, self.flow, self.feed))(client)
            except TidegateError as error:
                self.counts[error.code.name] += 1
                if error.code.name not in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"):
                    raise
                await asyncio.sleep(0.05)

    async def admit(self, client: AsyncClient) -> None:
        """A worker, new or known: its binding never changes."""
        self.number += 1
        worker = f"w{self.rng.randint(0, max(10, self.number // 3))}"
        response = (await client.admit(ROUTE, worker, 10)).response
        self.counts[types_pb2.Verdict.Name(response.verdict)] += 1
        if response.verdict != types_pb2.VERDICT_ADMITTED:
            return
        binding = response.binding
        assert self.bound.setdefault(worker, binding.candidate) == binding.candidate, f"{worker} has two pins"
        if binding.tier == types_pb2.TIER_PAID:
            self.counts["paid"] += 1
            assert response.evidence, "a paid admission without evidence"

    async def flow(self, client: AsyncClient) -> None:
        """A hop somewhere in one of the flows of this minute."""
        trace_id = f"{int(time.monotonic() // 20) * 10 + self.rng.randint(1, 5):032x}"
        root = await client.flows.enter_hop(hop(trace_id, "", "A", reserve=1))
        self.seen(trace_id, root)
        if root.verdict == types_pb2.VERDICT_ADMITTED:
            child = hop(trace_id, "A", f"B{self.rng.randint(0, 99)}", root.grant.tracestate, self.rng.randint(0, 20))
            self.seen(trace_id, await client.flows.enter_hop(child))

    def seen(self, trace_id: str, response: Any) -> None:
        """All grants that a caller was told of stay within the limit."""
        if response.verdict == types_pb2.VERDICT_ADMITTED:
            self.granted[trace_id].add(response.grant.hop_id)
            self.counts["hops"] += 1
            assert len(self.granted[trace_id]) <= FAN_OUT, f"{trace_id} is over its fan-out"

    async def feed(self, client: AsyncClient) -> None:
        """Facts that change sides now and then."""
        percents = [self.rng.choice((0.0, 1.0, 50.0)) for _ in range(2)]
        facts = [quota("claude", percents[0]), quota("codex", percents[1]), balance()]
        await client.report_capacity("c", facts)

    def last_words(self) -> str:
        """The ends of the replicas' logs."""
        return "\n".join(process.log.read_text(errors="replace")[-1500:] for process in self.replicas)

    async def serving(self) -> bool:
        """Whether a new worker can be bound and a hop entered on every replica."""
        for process in self.replicas:
            try:
                async with process.client(timeout=2) as client:
                    if not await client.serving():
                        return False
                    await client.report_capacity("c", [quota("claude", 50.0), quota("codex", 50.0), balance()])
                    await client.flows.enter_hop(hop(f"{self.rng.getrandbits(100) + 1:032x}", "", "A"))
            except TidegateError:
                return False
        return True


async def hurt(soak: Soak, postgres: Postgres, valkey: Valkey) -> list[float]:
    """Kill one thing after the other; how long each recovery took."""
    took = []
    while time.monotonic() < soak.end - RECOVERED:
        await asyncio.sleep(soak.rng.uniform(1, 5))
        victim = soak.rng.choice(("worker", "postgres", "valkey"))
        soak.counts[f"killed {victim}"] += 1
        if victim == "worker":
            workers = soak.rng.choice(soak.replicas).workers()
            if workers:
                os.kill(soak.rng.choice(workers), signal.SIGKILL)
        else:
            server = postgres if victim == "postgres" else valkey
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(soak.rng.uniform(0, 3))
            await asyncio.to_thread(server.start)
        try:
            took.append(await until(soak.serving, RECOVERED, f"SERVING after {victim}"))
        except AssertionError as error:
            raise AssertionError(f"{error}; the last words:\n{soak.last_words()}") from error
    return took


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
async def test_nothing_is_lost_and_nothing_is_exceeded(tmp_path: Path) -> None:
    postgres, valkey = Postgres(), Valkey()
    with running(postgres, valkey), ExitStack() as processes:
        database = postgres.new_database()
        migrate(postgres.dsn(database))
        place = Place(tmp_path, durable=postgres.dsn(database), live=valkey.url())
        settings = {
            "providers": PAID,
            "managedRouting": ROUTES,
            "flow": {"maxFanOut": FAN_OUT, "maxTokens": TOKENS},
            "coldWait": "0.1s",
        }
        replicas = [
            processes.enter_context(replica(place.write(name, **settings), "--workers", "2")) for name in ("a", "b")
        ]
        soak = Soak(replicas, random.Random(SEED))
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(soak.load())
            took = await hurt(soak, postgres, valkey)
        await until(soak.serving, RECOVERED, "SERVING at the end")
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(replicas[0].client(timeout=20))
            for worker, candidate in soak.bound.items():
                found = (await client.look_up_pin(ROUTE, worker)).response
                assert found.pin.candidate == candidate, f"the pin of {worker} is lost"
            census = await client.verify_pins()
            assert not census.corrupt_pin_ids
            for trace_id in list(soak.granted)[-5:]:
                flow = await client.flows.get(trace_id)
                assert flow.invocations <= FAN_OUT
                assert flow.tokens <= TOKENS
                assert soak.granted[trace_id] <= {h.hop_id for h in flow.hops}
        print(f"\n{dict(soak.counts)}\nrecoveries: {len(took)}, the slowest {max(took):.1f} s")  # noqa: T201 - a report
        assert soak.bound
        assert soak.counts["hops"]
