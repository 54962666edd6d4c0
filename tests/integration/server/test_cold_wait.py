"""The cold wait (§4.1 step 8 of the contract) on a running server whose clock moves only by the test's hand."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import types_pb2
from tidegate_server.core.model import SECOND

from tests.integration.server.harness import CONFIG, Served, balance, failure, health, quota, route, serving, until

ADMITTED, REFUSED = types_pb2.VERDICT_ADMITTED, types_pb2.VERDICT_REFUSED
CAPACITY_UNKNOWN = types_pb2.REFUSAL_REASON_CAPACITY_UNKNOWN
WAIT = 5 * SECOND // 2
"""The contract's default of `coldWait`."""


def later(call: Any) -> "asyncio.Task[Any]":
    """A call that goes on while the test does something else."""
    return asyncio.ensure_future(call)


async def up_for_long(server: Served) -> None:
    """A server that just started waits for collectors to connect; from now on it does not."""
    await server.fake.advance(WAIT + 1)


async def nothing_is_left(server: Served) -> None:
    """No waiter, no feed, no call, and nobody listens for news."""
    application = server.application
    await until(lambda: (server.waiting, server.sessions, application.guard.running) == (0, 0, 0))
    assert application.feeds._changes.expected() == ()


async def test_a_refresh_answers_a_waiting_admission(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        await up_for_long(server)
        answer = later(server.admit())
        refresh = await collector.asked()
        assert list(refresh.providers) == ["qwen"]
        assert refresh.deadline.ToNanoseconds() == WAIT
        await collector.send(health())
        admitted = await answer
        assert (admitted.verdict, admitted.pin_state) == (ADMITTED, types_pb2.PIN_STATE_NEW)
        assert server.waiting == 0


async def test_many_waiters_share_one_refresh_per_provider(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        await up_for_long(server)
        answers = [later(server.admit(worker_id=f"w{index}")) for index in range(20)]
        await until(lambda: server.waiting == 20)
        refresh = await collector.asked()
        await collector.say(batch=wire.Batch(sequence=7, observations=[health()]))
        assert (await collector.hear()).ack.sequence == 7  # and no second refresh before it
        assert {answer.verdict for answer in await asyncio.gather(*answers)} == {ADMITTED}
        await collector.answer(refresh)
        assert await collector.nothing_more()


async def test_a_failed_refresh_ends_the_wait_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        await up_for_long(server)
        answer = later(server.admit())
        await collector.answer(await collector.asked(), "qwen")
        refused = await answer
        assert (refused.verdict, refused.refusal.reason) == (REFUSED, CAPACITY_UNKNOWN)
        assert refused.suggestion == "a fresh health fact for qwen"


async def test_the_wait_goes_on_until_every_collector_of_the_provider_has_failed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector("one") as one, server.collector("two") as two:
        await up_for_long(server)
        answer = later(server.admit())
        await one.answer(await one.asked(), "qwen")
        refresh = await two.asked()
        await one.send()
        assert server.waiting == 1
        await two.answer(refresh, "qwen")
        assert (await answer).verdict == REFUSED


async def test_a_collector_that_leaves_without_an_answer_has_failed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        await up_for_long(server)
        answer = later(server.admit())
        await collector.asked()
        await collector.nothing_more()
        assert (await answer).verdict == REFUSED


async def test_an_answer_without_the_fact_waits_on_and_no_longer_than_the_cold_wait(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        await up_for_long(server)
        answer = later(server.admit())
        await collector.answer(await collector.asked())
        await collector.send()
        await server.fake.advance(WAIT - 1)
        assert server.waiting == 1
        await server.fake.advance(1)
        assert (await answer).verdict == REFUSED


async def test_a_collector_that_connects_meanwhile_is_asked_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        answer = later(server.admit())  # just started: somebody may still come
        await until(lambda: server.waiting == 1)
        await server.fake.advance(SECOND)
        async with server.collector("late", "qwen") as late:
            refresh = await late.asked()
            assert refresh.deadline.ToNanoseconds() == WAIT - SECOND
            await late.send(health())
            assert (await answer).verdict == ADMITTED


async def test_one_that_connects_while_another_works_is_asked_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector("hangs"):
        await up_for_long(server)
        answer = later(server.admit())
        await until(lambda: server.waiting == 1)
        async with server.collector("works") as works:
            await works.asked()
            await works.send(health())
            assert (await answer).verdict == ADMITTED


async def test_one_that_cannot_be_asked_is_waited_for_and_not_asked(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector(can_refresh=False) as passive:
        await up_for_long(server)
        answer = later(server.admit())
        await until(lambda: server.waiting == 1)
        await passive.send(health())  # the next message is its acknowledgement, not a refresh
        assert (await answer).verdict == ADMITTED


async def test_no_wait_where_nobody_covers_the_provider(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector("c", "codex"):
        await up_for_long(server)
        refused = await server.admit()  # the clock stands: a wait would never end
        assert refused.refusal.reason == CAPACITY_UNKNOWN
        assert server.application.cold_wait.waits <= 1


async def test_a_server_that_just_started_waits_for_collectors_to_connect(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        answer = later(server.admit())
        await until(lambda: server.waiting == 1)
        await server.fake.advance(WAIT)
        assert (await answer).refusal.reason == CAPACITY_UNKNOWN
        await server.fake.advance(1)
        assert (await server.admit()).refusal.reason == CAPACITY_UNKNOWN


async def test_a_wait_that_began_while_starting_ends_when_nobody_came(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.fake.advance(2 * SECOND)
        answer = later(server.admit())
        await until(lambda: server.waiting == 1)
        await server.fake.advance(SECOND // 2 + 1)
        assert (await answer).verdict == REFUSED


async def test_waiters_are_bounded(tmp_path: Path) -> None:
    async with serving(tmp_path, limits={"maxColdWaiters": 1}) as server, server.collector() as collector:
        await up_for_long(server)
        first = later(server.admit(worker_id="first"))
        await until(lambda: server.waiting == 1)
        second = await server.admit(worker_id="second")
        assert second.refusal.reason == CAPACITY_UNKNOWN
        assert server.application.cold_wait.shed == 1
        await collector.asked()
        await collector.send(health())
        assert (await first).verdict == ADMITTED


async def test_only_the_providers_in_doubt_are_asked(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        await up_for_long(server)
        await collector.send(
            health(state=types_pb2.HEALTH_STATE_SLEEPING), quota("claude", 0), quota("claude", 9, "7d")
        )
        answer = later(server.admit("managed/routine"))
        assert list((await collector.asked()).providers) == ["codex"]
        await collector.send(quota("codex", 9))
        assert (await answer).binding.candidate == "codex/sol"


async def test_money_is_not_bound_before_an_earlier_unknown_candidate_had_its_chance(tmp_path: Path) -> None:
    config = {
        **CONFIG,
        "managedRouting": {
            "routes": {"managed/mixed": route("qwen/qwen-next", "codex/sol", "or-deepseek", allowPaid=True)}
        },
    }
    async with serving(tmp_path, config) as server, server.collector() as collector:
        await up_for_long(server)
        await collector.send(quota("codex", 0), balance())
        answer = later(server.admit("managed/mixed", "one"))
        refresh = await collector.asked()
        assert list(refresh.providers) == ["qwen"]
        await collector.send(health())
        assert (await answer).binding.provider == "qwen"

        await server.fake.advance(16 * SECOND)  # the engine's health is stale again
        answer = later(server.admit("managed/mixed", "two"))
        await collector.answer(await collector.asked(), "qwen")
        paid = await answer
        assert paid.binding.provider == "openrouter"
        assert [e.blocker for e in paid.evidence] == [types_pb2.BLOCKER_QUOTA_EXHAUSTED]
        assert paid.evidence[0].candidate == "codex/sol"
        assert paid.evidence[0].fact.age.seconds == 16


async def test_a_dry_run_neither_waits_nor_asks_nor_stores(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        await up_for_long(server)
        assert (await server.admit(dry_run=True)).refusal.reason == CAPACITY_UNKNOWN
        await collector.send(health())  # answered by its acknowledgement: no refresh was asked for
        assert (await server.admit(dry_run=True)).pin_state == types_pb2.PIN_STATE_NEW
        assert (await server.admit(dry_run=True)).pin_state == types_pb2.PIN_STATE_NEW


async def test_a_pinned_worker_waits_for_its_own_provider(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        await collector.send(health())
        await server.admit("managed/routine")
        await server.fake.advance(16 * SECOND)
        answer = later(server.admit("managed/routine"))
        assert list((await collector.asked()).providers) == ["qwen"]
        await collector.send(health())
        again = await answer
        assert (again.verdict, again.pin_state) == (ADMITTED, types_pb2.PIN_STATE_EXISTING)


async def test_a_batch_shares_one_cold_wait(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        await up_for_long(server)
        requests = [wire.AdmitRequest(model="managed/local", worker_id=f"w{i}", request_bytes=1) for i in range(50)]
        requests[7].worker_id = ""
        requests[8].model = "managed/none"
        batch = later(server.admission.AdmitBatch(wire.AdmitBatchRequest(requests=requests)))
        await until(lambda: server.waiting == 48)
        await collector.asked()
        await server.fake.advance(WAIT)
        results = (await batch).results
        assert len(results) == 50
        assert [results[7].error.reason, results[8].error.reason] == ["INVALID_REQUEST", "MODEL_NOT_FOUND"]
        refused = [r.response for index, r in enumerate(results) if index not in (7, 8)]
        assert {r.refusal.reason for r in refused} == {CAPACITY_UNKNOWN}
        assert server.waiting == 0


async def test_a_batch_is_bounded(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        request = wire.AdmitBatchRequest(requests=[wire.AdmitRequest()] * 257)
        end = await failure(server.admission.AdmitBatch(request))
        assert (end.code, end.fields) == ("INVALID_ARGUMENT", ["requests"])
        assert not (await server.admission.AdmitBatch(wire.AdmitBatchRequest())).results


async def test_callers_that_go_away_leave_nothing_behind(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        await up_for_long(server)
        before = len(asyncio.all_tasks())
        requests = [wire.AdmitRequest(model="managed/local", worker_id=f"w{i}", request_bytes=1) for i in range(100)]
        calls: list[Any] = [server.admission.Admit(request) for request in requests]
        calls.append(server.admission.AdmitBatch(wire.AdmitBatchRequest(requests=requests)))
        await until(lambda: server.waiting == 200)
        for call in calls:
            call.cancel()
        for call in calls:
            with pytest.raises(asyncio.CancelledError):
                await call
        await until(lambda: server.waiting == 0)
        await until(lambda: len(asyncio.all_tasks()) <= before)
        await collector.asked()
        await collector.send(health())
        assert (await server.admit()).verdict == ADMITTED
        await collector.nothing_more()
        await nothing_is_left(server)


async def test_feeds_that_go_away_leave_nothing_behind(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        async with server.collector("first") as collector:
            await collector.send()
        await until(lambda: server.sessions == 0)
        before = len(asyncio.all_tasks())
        for index in range(50):
            async with server.collector(f"c{index}") as collector:
                await collector.say(batch=wire.Batch(observations=[health()]))
        await until(lambda: server.sessions == 0)
        await until(lambda: len(asyncio.all_tasks()) <= before)
        await nothing_is_left(server)


async def test_no_deadline_is_an_ordinary_answer_under_the_servers_own_cap(tmp_path: Path) -> None:
    async with serving(tmp_path, limits={"defaultDeadline": "1s"}) as server, server.collector() as collector:
        await up_for_long(server)
        answer = later(server.admit())
        refresh = await collector.asked()
        assert refresh.deadline.ToNanoseconds() == SECOND * 9 // 10  # a tenth brings the answer back
        await server.fake.advance(SECOND)
        assert (await answer).refusal.reason == CAPACITY_UNKNOWN
