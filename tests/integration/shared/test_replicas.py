"""Four workers on two replicas, as processes: what one learns all know (cases 15, 30, 36, 44, 60)."""

import asyncio
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
from tidegate import AsyncClient
from tidegate.errors import TidegateError
from tidegate.v1 import admission_pb2, types_pb2

from tests.support.replicas import CONFIG, ROUTE, Place, Process, hop, quota, replica, until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.shared(tmp_path)


@pytest.fixture
def two(place: Place) -> Iterator[list[Process]]:
    """Two replicas of two workers each."""
    with ExitStack() as stack:
        yield [stack.enter_context(replica(place.write(name), "--workers", "2")) for name in ("a", "b")]


async def channels(stack: AsyncExitStack, replicas: list[Process], each: int) -> list[AsyncClient]:
    """Fresh connections, which the kernel spreads over the workers."""
    return [await stack.enter_async_context(process.client(timeout=5)) for process in replicas for _ in range(each)]


async def test_what_one_worker_learns_all_know(two: list[Process]) -> None:
    async with AsyncExitStack() as stack:
        clients = await channels(stack, two, 20)
        await clients[0].report_capacity("c", [quota("claude", 50), quota("codex", 60)])
        await asyncio.sleep(0.1)  # §12: within 100 ms everywhere
        answers = await asyncio.gather(*(client.admit(ROUTE, "dry", 10, dry_run=True) for client in clients))
        assert {answer.response.binding.candidate for answer in answers} == {"claude/sonnet"}

        first = await clients[0].admit(ROUTE, "worker", 10)
        assert first.response.binding.candidate == "claude/sonnet"
        await clients[-1].report_capacity("c", [quota("claude", 1)])
        await clients[-1].report_capacity("c", [quota("claude", 70)])
        answers = await asyncio.gather(*(client.admit(ROUTE, "worker", 10) for client in clients))
        assert {answer.response.binding.candidate for answer in answers} == {"claude/sonnet"}
        assert {answer.response.policy_fingerprint for answer in answers} == {first.response.policy_fingerprint}
        assert {types_pb2.PinState.Name(a.response.pin_state) for a in answers} == {"PIN_STATE_EXISTING"}


async def test_an_exhausted_flow_is_exhausted_everywhere_at_once(two: list[Process]) -> None:
    async with AsyncExitStack() as stack:
        clients = await channels(stack, two, 20)
        root = await clients[0].flows.enter_hop(hop(TRACE, "", "A"))
        answers = await asyncio.gather(
            *(
                client.flows.enter_hop(hop(TRACE, "A", f"B{n}", root.grant.tracestate))
                for n, client in enumerate(clients)
            )
        )
        verdicts = Counter(types_pb2.Verdict.Name(answer.verdict) for answer in answers)
        assert verdicts == {"VERDICT_ADMITTED": 19, "VERDICT_REFUSED": 21}
        again = await asyncio.gather(
            *(client.flows.enter_hop(hop(TRACE, "A", "C", root.grant.tracestate)) for client in clients)
        )
        assert {types_pb2.RefusalReason.Name(answer.refusal.reason) for answer in again} == {
            "REFUSAL_REASON_FLOW_FAN_OUT_EXCEEDED"
        }


async def test_case_53_parallel_children_on_four_workers_share_one_budget(place: Place) -> None:
    flow = {"maxTokens": 100, "maxFanOut": 100}
    with ExitStack() as processes:
        replicas = [
            processes.enter_context(replica(place.write(name, flow=flow), "--workers", "2")) for name in ("a", "b")
        ]
        async with AsyncExitStack() as stack:
            clients = await channels(stack, replicas, 10)
            root = await clients[0].flows.enter_hop(hop(TRACE, "", "A", reserve=95))
            answers = await asyncio.gather(
                *(client.flows.enter_hop(hop(TRACE, "A", "B", root.grant.tracestate, reserve=3)) for client in clients)
            )
            assert sum(a.verdict == types_pb2.VERDICT_ADMITTED for a in answers) == 1
            assert (await clients[-1].flows.get(TRACE)).tokens == 98


async def test_a_fact_is_used_by_all_within_100_ms(two: list[Process]) -> None:
    async with AsyncExitStack() as stack:
        clients = await channels(stack, two, 4)
        slowest = 0.0
        for number in range(20):
            percent = 10 + number
            await clients[0].report_capacity("c", [quota("claude", percent)])
            for client in clients[4:]:

                async def seen(client: AsyncClient = client, percent: int = percent) -> bool:
                    shown = await client.capacity(["claude"])
                    return str(percent) in str(shown)

                slowest = max(slowest, await until(seen, 2, "the fact on the other replica"))
        assert slowest < 0.1


async def test_a_collector_elsewhere_ends_the_cold_wait(place: Place) -> None:
    """The collector is connected to the other replica; it is asked there, and what it says decides here."""
    with ExitStack() as processes:
        a, b = (processes.enter_context(replica(place.write(name, coldWait="3s"))) for name in ("a", "b"))
        async with a.client(timeout=10) as gateway, b.client() as collector:
            hello = admission_pb2.Hello(collector_id="c", providers=["claude"], can_refresh=True)
            async with collector.capacity_feed(hello) as feed:
                asked: list[str] = []

                async def answer() -> None:
                    async for message in feed:
                        if message.WhichOneof("message") == "refresh":
                            asked.extend(message.refresh.providers)
                            await feed.send(1, [quota("claude", 50)])
                            await feed.refreshed(message.refresh.refresh_id)

                answering = asyncio.create_task(answer())
                await asyncio.sleep(3.2)  # past the start, when waiting needs no collector
                begun = time.monotonic()
                answers = await asyncio.gather(*(gateway.admit(ROUTE, f"w{n}", 10) for n in range(20)))
                assert time.monotonic() - begun < 1.0
                assert {answer.response.binding.candidate for answer in answers} == {"claude/sonnet"}
                assert asked == ["claude"]
                answering.cancel()


async def test_a_failed_refresh_elsewhere_ends_the_cold_wait(place: Place) -> None:
    with ExitStack() as processes:
        a, b = (processes.enter_context(replica(place.write(name, coldWait="3s"))) for name in ("a", "b"))
        async with a.client(timeout=10) as gateway, b.client() as collector:
            hello = admission_pb2.Hello(collector_id="c", providers=["claude", "codex"], can_refresh=True)
            async with collector.capacity_feed(hello) as feed:

                async def answer() -> None:
                    async for message in feed:
                        if message.WhichOneof("message") == "refresh":
                            await feed.refreshed(message.refresh.refresh_id, message.refresh.providers)

                answering = asyncio.create_task(answer())
                await asyncio.sleep(3.2)
                begun = time.monotonic()
                refused = await gateway.admit(ROUTE, "w", 10)
                assert time.monotonic() - begun < 1.5
                assert refused.response.refusal.reason == types_pb2.REFUSAL_REASON_CAPACITY_UNKNOWN
                answering.cancel()


async def test_a_collector_that_moves_to_another_replica_replaces_its_old_stream(place: Place) -> None:
    with ExitStack() as processes:
        a, b = (processes.enter_context(replica(place.write(name))) for name in ("a", "b"))
        async with a.client() as first, b.client() as second:
            hello = admission_pb2.Hello(collector_id="c", providers=["claude"], can_refresh=True)
            async with first.capacity_feed(hello) as old:

                async def listen() -> None:
                    async for _ in old:
                        pass

                listening = asyncio.create_task(listen())
                await asyncio.sleep(0.3)
                async with second.capacity_feed(hello):
                    with pytest.raises(TidegateError) as ended:
                        await asyncio.wait_for(listening, 5)
                    assert ended.value.reason == "FEED_REPLACED"


async def test_a_retired_pin_is_refused_by_the_other_replica_within_a_second_and_a_half(two: list[Process]) -> None:
    async with AsyncExitStack() as stack:
        clients = await channels(stack, two, 8)
        await clients[0].report_capacity("c", [quota("claude", 50)])
        await asyncio.gather(*(client.admit(ROUTE, "worker", 10) for client in clients))
        assert await clients[0].retire_pins(model=ROUTE, reason="test") == 1

        async def all_refuse() -> bool:
            answers = await asyncio.gather(*(client.admit(ROUTE, "worker", 10) for client in clients))
            return {a.response.refusal.reason for a in answers} == {types_pb2.REFUSAL_REASON_PIN_RETIRED}

        await until(all_refuse, 1.5, "PIN_RETIRED everywhere")


async def test_case_30_a_changed_policy_is_everywhere_at_the_same_moment(place: Place) -> None:
    config = place.write("a")
    with replica(config, "--workers", "3") as process:
        async with AsyncExitStack() as stack:
            clients = await channels(stack, [process], 12)
            await clients[0].report_capacity("c", [quota("claude", 50), quota("codex", 50)])

            async def revisions() -> set[str]:
                return {
                    s.configuration_revision for s in await asyncio.gather(*(client.get_status() for client in clients))
                }

            (before,) = await revisions()
            routes = CONFIG["managedRouting"]["routes"]
            changed: dict[str, Any] = {"routes": {ROUTE: {**routes[ROUTE], "minRemainingPercent": 60}}}
            place.write("a", managedRouting=changed)
            mixed: list[float] = []

            async def all_new() -> bool:
                seen = await revisions()
                if len(seen) > 1:
                    mixed.append(time.monotonic())
                return before not in seen and len(seen) == 1

            await until(all_new, 5, "the new revision everywhere")
            assert not mixed or mixed[-1] - mixed[0] < 0.1
            answers = await asyncio.gather(*(client.admit(ROUTE, "w", 10) for client in clients))
            assert {a.response.refusal.reason for a in answers} == {types_pb2.REFUSAL_REASON_NO_ELIGIBLE_CANDIDATE}

            (good,) = await revisions()
            config.write_text("{ not json")
            process.process.send_signal(signal.SIGHUP)

            async def all_tell() -> bool:
                states = await asyncio.gather(*(client.get_status() for client in clients))
                return all(state.configuration_error for state in states)

            await until(all_tell, 5, "the fault in every worker's status")
            assert await revisions() == {good}
            for pid in process.workers():
                os.kill(pid, signal.SIGKILL)

            async def revived() -> bool:
                try:
                    async with process.client(timeout=2) as client:
                        return (await client.get_status()).configuration_revision == good
                except TidegateError:
                    return False

            await until(revived, 20, "a worker under the last good configuration")


async def test_case_36_killed_workers_come_back_and_no_pin_is_lost(place: Place) -> None:
    with replica(place.write("a"), "--workers", "3") as process:
        async with process.client() as client:
            await client.report_capacity("c", [quota("claude", 50), quota("codex", 50)])
        bound: dict[str, str] = {}
        end = time.monotonic() + 6
        number = 0

        async def load() -> None:
            nonlocal number
            while time.monotonic() < end:
                number += 1
                worker = f"w{number % 50}"
                try:
                    async with process.client(timeout=2) as client:
                        answer = await client.admit(ROUTE, worker, 10)
                except TidegateError:
                    continue
                if answer.may_forward:
                    assert (
                        bound.setdefault(worker, answer.response.binding.candidate) == answer.response.binding.candidate
                    )

        async def kill() -> None:
            killed = 0
            while time.monotonic() < end:
                await asyncio.sleep(0.8)
                workers = process.workers()
                if workers:
                    os.kill(workers[killed % len(workers)], signal.SIGKILL)
                    killed += 1
            assert killed >= 4

        await asyncio.gather(kill(), *(load() for _ in range(4)))
        assert bound

        async def three() -> bool:
            async with process.client(timeout=2) as client:
                return len(process.workers()) == 3 and await client.serving()

        await until(three, 30, "three workers again")
        async with process.client(timeout=20) as client:
            for worker, candidate in bound.items():
                pin = await client.look_up_pin(ROUTE, worker)
                assert pin.response.pin.candidate == candidate
        assert process.stop() == 0


async def test_a_hung_worker_is_ended_and_started_again(place: Place) -> None:
    with replica(place.write("a"), "--workers", "2") as process:
        hung = process.workers()[0]
        os.kill(hung, signal.SIGSTOP)

        async def replaced() -> bool:
            workers = process.workers()
            return len(workers) == 2 and hung not in workers

        await until(replaced, 15, "the hung worker's successor")


def test_case_44_another_server_on_the_same_port_refuses_to_start(place: Place) -> None:
    with replica(place.write("a"), "--workers", "2") as process:
        for arguments in ([], ["--workers", "2"]):
            with (
                pytest.raises(AssertionError, match="cannot listen there"),
                replica(place.write("b", listen=process.address), *arguments),
            ):
                pass


def test_workers_end_when_their_supervisor_is_killed(place: Place) -> None:
    with replica(place.write("a"), "--workers", "2") as process:
        workers = process.workers()
        host, port = process.address.rsplit(":", 1)
        process.process.kill()
        process.process.wait()
        end = time.monotonic() + 10
        while any(
            Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in workers
        ):
            assert time.monotonic() < end, "a worker lives on"
            time.sleep(0.05)
        with pytest.raises(OSError, match="refused"), socket.create_connection((host, int(port)), 1):
            pass


def test_the_embedded_mode_refuses_workers(place: Place) -> None:
    config = place.write("a", stores=None)
    with pytest.raises(AssertionError, match="needs the shared mode"), replica(config, "--workers", "2"):
        pass


async def test_case_60_one_fingerprint_whatever_the_hash_seed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        with replica(place.write(f"seed{seed}"), "--workers", "2") as process:
            async with AsyncExitStack() as stack:
                for client in await channels(stack, [process], 4):
                    await client.report_capacity("c", [quota("claude", 50)])
                    answer = await client.admit(ROUTE, "one worker", 10)
                    seen.add(answer.response.policy_fingerprint)
    assert len(seen) == 1
