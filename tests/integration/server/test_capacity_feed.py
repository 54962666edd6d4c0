"""CapacityFeed and ReportCapacity on a running server (§6 of the contract)."""

import math
from pathlib import Path
from typing import Any

import grpc
import pytest
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import types_pb2
from tidegate_server.core.model import SECOND
from tidegate_server.testing import EPOCH
from tidegate_server.wiring import listeners

from tests.integration.server.harness import CONFIG, bearer, failure, health, identity, quota, serving, until

ACCEPTED = types_pb2.OBSERVATION_RESULT_ACCEPTED
SUPERSEDED = types_pb2.OBSERVATION_RESULT_SUPERSEDED
REFUSED = types_pb2.OBSERVATION_RESULT_REFUSED


async def test_a_feed_is_welcomed_and_its_batches_are_acknowledged_item_by_item(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        collector = server.collector("engine-1", "qwen")
        welcome = await collector.connect()
        assert welcome.welcome.server_time.ToNanoseconds() == EPOCH
        ack = await collector.send(health(age=2), health(age=5), health("nobody"), quota("claude", 50))
        assert [item.index for item in ack.results] == [0, 1, 2, 3]
        assert [item.result for item in ack.results] == [ACCEPTED, SUPERSEDED, REFUSED, ACCEPTED]
        assert [bool(item.reason) for item in ack.results] == [False, False, True, False]
        assert ack.results[2].reason == 'provider: "nobody" is not configured'
        assert {fact.collector_id for fact in await server.facts()} == {"engine-1"}
        assert await collector.nothing_more()
        await until(lambda: server.sessions == 0)


@pytest.mark.parametrize(
    "message",
    [
        {"batch": wire.Batch(observations=[health()])},
        {"heartbeat": wire.Heartbeat()},
        {"retract": wire.Retract()},
        {"refresh_result": wire.RefreshResult(refresh_id=1)},
        {},
    ],
    ids=lambda message: next(iter(message), "nothing"),
)
async def test_the_first_message_is_hello(tmp_path: Path, message: dict[str, Any]) -> None:
    async with serving(tmp_path) as server:
        collector = server.collector()
        await collector.say(**message)
        end = await collector.end()
        assert end is not None
        assert (end.code, end.reason, end.fields) == ("INVALID_ARGUMENT", "INVALID_REQUEST", ["hello"])
        assert await server.facts() == []


async def test_a_feed_that_says_nothing_at_all_is_rejected(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        call = server.admission.CapacityFeed(metadata=server.metadata)
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call.read()
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 257])
async def test_the_collectors_id_is_checked(tmp_path: Path, name: str) -> None:
    async with serving(tmp_path) as server:
        collector = server.collector(name)
        await collector.say(hello=wire.Hello(collector_id=name))
        end = await collector.end()
        assert end is not None
        assert (end.code, end.fields) == ("INVALID_ARGUMENT", ["hello.collector_id"])
        request = wire.ReportCapacityRequest(collector_id=name)
        reported = await failure(server.admission.ReportCapacity(request, metadata=server.metadata))
        assert (reported.code, reported.fields) == ("INVALID_ARGUMENT", ["collector_id"])


async def test_a_second_hello_ends_the_stream(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        await collector.say(hello=wire.Hello(collector_id="c"))
        end = await collector.end()
        assert end is not None
        assert (end.code, end.fields) == ("INVALID_ARGUMENT", ["hello"])


async def test_a_message_of_a_later_version_ends_the_stream(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        unknown = wire.CapacityFeedRequest.FromString(b"\xa2\x06\x02\x08\x01")  # field 100, a message
        await collector._call.write(unknown)
        end = await collector.end()
        assert end is not None
        assert (end.code, end.fields) == ("INVALID_ARGUMENT", ["message"])


async def test_a_bad_item_is_refused_alone_and_the_stream_lives(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        for bad in (math.nan, math.inf, -math.inf):
            ack = await collector.send(quota("codex", bad), health())
            assert ack.results[0].result == REFUSED
            assert ack.results[1].result != REFUSED
            assert ack.results[0].reason.startswith("quota.remaining_percent: ")
        huge = types_pb2.Observation(provider="codex", quota=types_pb2.Quota(window="5h", remaining_percent=1))
        huge.observe_time.seconds = huge.quota.reset_time.seconds = (1 << 63) - 1
        huge.age.seconds = -(1 << 63)
        ack = await collector.send(huge)
        assert ack.results[0].result == REFUSED
        await collector.say(heartbeat=wire.Heartbeat())
        assert (await collector.send(quota("codex", 50))).results[0].result == ACCEPTED
        assert [fact.observation.provider for fact in await server.facts()] == ["codex", "qwen"]


@pytest.mark.parametrize("end", [0, -1, -(1 << 63), 10**15, (1 << 63) - 1])
async def test_a_reset_in_another_unit_leaves_the_block_and_bounds_the_delay(tmp_path: Path, end: int) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        spent = quota("codex", 0)
        spent.quota.reset_time.seconds = end
        await collector.send(spent)
        answer = await server.admit("managed/accounts", dry_run=True)
        assert answer.verdict == types_pb2.VERDICT_REFUSED
        assert answer.refusal.retry_delay.seconds <= 400 * 24 * 3600
        facts = await server.facts("codex")
        assert facts[0].observation.quota.remaining_percent == 0


async def test_a_batch_over_its_limits_ends_the_stream_and_keeps_what_came_before(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        items = [health(age=index / 1000) for index in range(1001)]
        async with server.collector() as collector:
            assert len((await collector.send(*items[:1000])).results) == 1000
            await collector.say(batch=wire.Batch(observations=items))
            end = await collector.end()
            assert end is not None
            assert (end.code, end.fields) == ("INVALID_ARGUMENT", ["batch.observations"])
        async with server.collector() as collector:
            big = quota("codex", 1, window="x" * (1 << 20))
            await collector.say(batch=wire.Batch(observations=[big]))
            end = await collector.end()
            assert end is not None
            assert (end.code, end.fields) == ("INVALID_ARGUMENT", ["batch"])
        assert [fact.observation.provider for fact in await server.facts()] == ["qwen"]
        request = wire.ReportCapacityRequest(collector_id="c", observations=items)
        reported = await failure(server.admission.ReportCapacity(request, metadata=server.metadata))
        assert (reported.code, reported.fields) == ("INVALID_ARGUMENT", ["observations"])
        request = wire.ReportCapacityRequest(collector_id="c", observations=[big])
        reported = await failure(server.admission.ReportCapacity(request, metadata=server.metadata))
        assert (reported.code, reported.fields) == ("INVALID_ARGUMENT", ["observations"])


async def test_a_message_over_the_servers_limit_ends_that_stream_alone(tmp_path: Path) -> None:
    limits = {"maxMessageBytes": 4 * 1024 * 1024}
    async with serving(tmp_path, limits=limits) as server, server.collector("other") as other:
        async with server.collector("big") as collector:
            await collector.send(health())
            batch = wire.Batch(observations=[quota("codex", 1, window="x" * 5_000_000)])
            await collector.say(batch=batch)
            end = await collector.end()
            assert end is not None
            assert end.code == "RESOURCE_EXHAUSTED"
        assert len((await other.send(quota("codex", 5))).results) == 1
        assert [fact.observation.provider for fact in await server.facts()] == ["codex", "qwen"]
        assert (await server.admit()).verdict == types_pb2.VERDICT_ADMITTED


RETRACTIONS = {
    "everything": (wire.Retract(), []),
    "a provider": (wire.Retract(providers=["claude"]), ["codex 5h", "codex 7d"]),
    "a window": (wire.Retract(window="5h"), ["claude 7d", "codex 7d"]),
    "a window of a provider": (wire.Retract(providers=["codex"], window="7d"), ["claude 5h", "claude 7d", "codex 5h"]),
    "a scope that nothing has": (wire.Retract(scope="s"), ["claude 5h", "claude 7d", "codex 5h", "codex 7d"]),
}


@pytest.mark.parametrize("what", RETRACTIONS)
async def test_a_collector_takes_back_what_it_gave_and_nothing_else(tmp_path: Path, what: str) -> None:
    retract, left = RETRACTIONS[what]
    async with serving(tmp_path) as server, server.collector("one") as one, server.collector("two") as two:
        await one.send(*(quota(p, 50, window) for p in ("claude", "codex") for window in ("5h", "7d")))
        await two.send(health())
        await one.say(retract=retract)
        await one.send()  # in order: its acknowledgement comes after the retraction
        facts = [fact.observation for fact in await server.facts()]
        assert [f"{o.provider} {o.quota.window}" for o in facts if o.HasField("quota")] == left
        assert any(o.HasField("health") for o in facts)


async def test_a_retraction_by_a_model_takes_that_models_facts(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        scoped = quota("codex", 50)
        scoped.quota.scope = "model:sol"
        await collector.send(scoped, quota("codex", 40))
        await collector.say(retract=wire.Retract(scope="model:sol"))
        await collector.send()
        (kept,) = await server.facts()
        assert (kept.observation.model, kept.observation.quota.remaining_percent) == ("", 40)


async def test_one_call_retracts_first_and_then_reports(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.report(quota("codex", 50, "5h"), quota("codex", 50, "7d"))
        request = wire.ReportCapacityRequest(
            collector_id="c", observations=[quota("codex", 40, "5h")], retract=wire.Retract()
        )
        await server.admission.ReportCapacity(request, metadata=server.metadata)
        assert [fact.observation.quota.window for fact in await server.facts()] == ["5h"]


async def test_a_new_stream_of_the_same_collector_replaces_the_old_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector("c") as old:
        await old.send(health(state=types_pb2.HEALTH_STATE_HEALTHY))
        async with server.collector("other") as other, server.collector("c") as new:
            end = await old.end()
            assert end is not None
            assert (end.code, end.reason, end.domain) == ("UNAVAILABLE", "FEED_REPLACED", "tidegate")
            assert end.metadata == {"collector_id": "c"}
            assert end.retry_delay is not None
            assert server.sessions == 2
            await new.send(quota("codex", 9))
            await other.send(quota("claude", 9))


async def test_feeds_are_bounded_and_a_reconnect_is_no_further_one(tmp_path: Path) -> None:
    async with serving(tmp_path, limits={"maxFeeds": 2}) as server, server.collector("a"), server.collector("b"):
        end = await _refused(server.collector("c"))
        assert (end.code, end.reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_FEEDS")
        assert end.retry_delay is not None
        async with server.collector("b"):
            assert server.sessions == 2
        await until(lambda: server.sessions == 1)
        async with server.collector("c"):
            assert server.sessions == 2


async def _refused(collector: Any) -> Any:
    await collector.say(hello=collector._hello)
    end = await collector.end()
    assert end is not None
    return end


IDENTITIES = [
    identity("gpu", "collector", providers=["qwen"]),
    identity("all", "collector", providers=list(CONFIG["providers"])),
    identity("edge", "gateway"),
]


async def test_a_collector_speaks_for_its_own_providers_only(tmp_path: Path) -> None:
    async with serving(tmp_path, identities=IDENTITIES) as server:
        gpu, anyone, edge = bearer("gpu-token"), bearer("all-token"), bearer("edge-token")
        end = await _refused(server.collector("c", "qwen", "codex", metadata=gpu))
        assert (end.code, end.reason) == ("PERMISSION_DENIED", "PROVIDER_NOT_ALLOWED")
        assert end.metadata == {"provider": "codex"}
        async with (
            server.collector("c", metadata=gpu) as collector,
            server.collector("c", metadata=anyone) as other,
        ):
            assert server.sessions == 2  # another identity's stream replaces nobody
            ack = await collector.send(quota("codex", 50), health())
            assert [item.result for item in ack.results] == [REFUSED, ACCEPTED]
            assert ack.results[0].reason.startswith("provider: ")
            await other.say(retract=wire.Retract())
            await other.send()
            facts = (await server.admission.Capacity(wire.CapacityRequest(), metadata=edge)).facts
            assert [fact.observation.provider for fact in facts] == ["qwen"]
            await collector.say(retract=wire.Retract(providers=["codex"]))
            end = await collector.end()
            assert end is not None
            assert (end.code, end.reason) == ("PERMISSION_DENIED", "PROVIDER_NOT_ALLOWED")
        request = wire.ReportCapacityRequest(collector_id="c", retract=wire.Retract(providers=["codex"]))
        reported = await failure(server.admission.ReportCapacity(request, metadata=gpu))
        assert reported.reason == "PROVIDER_NOT_ALLOWED"


async def test_a_sample_that_is_sent_again_gets_no_younger(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        sample = types_pb2.Observation(
            provider="qwen", health=types_pb2.Health(state=types_pb2.HEALTH_STATE_HEALTHY), sequence=1
        )
        sample.observe_time.FromNanoseconds(EPOCH)
        async with server.collector() as first:
            await first.send(sample)
        await server.fake.advance(10 * SECOND)
        async with server.collector() as again:
            await again.send(sample)
        (fact,) = await server.facts()
        assert fact.age.seconds == 10
        await server.fake.advance(5 * SECOND + 1)
        (fact,) = await server.facts()
        assert fact.freshness == types_pb2.FRESHNESS_STALE


async def test_a_step_of_the_wall_clock_changes_no_age(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        spent = quota("codex", 0)
        spent.quota.reset_time.FromNanoseconds(EPOCH + 60 * SECOND)
        await collector.send(health(), spent)
        for step in (86_400, -2 * 86_400):
            server.fake.step_wall(step * SECOND)
            facts = await server.facts()
            assert [fact.age.ToNanoseconds() for fact in facts] == [0, 0]
            assert {fact.freshness for fact in facts} == {types_pb2.FRESHNESS_FRESH}
            answer = await server.admit("managed/accounts", dry_run=True)
            assert answer.refusal.retry_delay.seconds == 60


async def test_warnings_name_collectors_that_cannot_keep_up(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as server,
        server.collector("passive", "codex", can_refresh=False),
        server.collector("slow", "qwen", interval=16),
        server.collector("quick", "claude", interval=15),
    ):
        warnings = (await server.status()).warnings
        assert [w.split(":")[0] for w in warnings] == ["codex", "qwen"]
        assert "passive" in warnings[0]
        assert "slow samples every 16 s" in warnings[1]
        request = wire.CapacityRequest(model="managed/routine")
        details = {e.candidate: e.detail for e in (await server.admission.Capacity(request)).evaluations}
        assert "passive collectors" in details["codex/sol"]
        assert "passive collectors" not in details["qwen/qwen-next"]


async def test_facts_of_a_reconnected_collector_serve_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        await collector.send(health(age=9))
    async with serving(tmp_path) as server, server.collector() as collector:
        await collector.send(health(age=9))
        assert (await server.admit()).verdict == types_pb2.VERDICT_ADMITTED


async def test_keepalive_is_what_the_contract_says() -> None:
    assert listeners.KEEPALIVE_MS + listeners.KEEPALIVE_TIMEOUT_MS <= 30_000
    assert listeners.SHORTEST_PING_MS <= 10_000  # grpc-go pings every 10 s at the most
