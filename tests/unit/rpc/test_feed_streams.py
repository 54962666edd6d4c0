"""A collector's stream without a socket, so that what was said too late can be said at will."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from google.protobuf.duration_pb2 import Duration
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import types_pb2
from tidegate_server.core.model import Caller, Tier
from tidegate_server.core.policy import FreshnessLimits, KnownProvider, Policy
from tidegate_server.errors import FeedReplaced
from tidegate_server.rpc.feed_stream import FeedStreams
from tidegate_server.stores.memory_facts import MemoryFactStore
from tidegate_server.testing import FakeClock
from tidegate_server.usecases.changes import Changes
from tidegate_server.usecases.feeds import Feeds
from tidegate_server.usecases.policies import Policies
from tidegate_server.usecases.report import Report

POLICY = Policy("r", {}, {}, {"qwen": KnownProvider(Tier.LOCAL, {})}, (), FreshnessLimits())
CALLER = Caller("i", "default", frozenset({"collector"}))
HELLO = wire.CapacityFeedRequest(hello=wire.Hello(collector_id="c", can_refresh=True))
BATCH = wire.CapacityFeedRequest(
    batch=wire.Batch(
        sequence=1,
        observations=[
            types_pb2.Observation(
                provider="qwen", age=Duration(), health=types_pb2.Health(state=types_pb2.HEALTH_STATE_HEALTHY)
            )
        ],
    )
)


class Side:
    """A collector's side of a stream: what it says, when the test wants it."""

    def __init__(self, streams: FeedStreams) -> None:
        self.says: asyncio.Queue[wire.CapacityFeedRequest] = asyncio.Queue()
        self.says.put_nowait(HELLO)
        self.hears = streams.serve(self._said(), CALLER)

    async def _said(self) -> AsyncIterator[wire.CapacityFeedRequest]:
        while True:
            yield await self.says.get()


async def test_what_a_replaced_stream_still_says_is_ignored() -> None:
    clock, changes = FakeClock(), Changes()
    facts = MemoryFactStore(clock)
    feeds = Feeds(changes, 10)
    streams = FeedStreams(feeds, Report(Policies(POLICY), facts, clock), clock)
    old = Side(streams)
    assert (await anext(old.hears)).HasField("welcome")
    new = Side(streams)
    assert (await anext(new.hears)).HasField("welcome")
    old.says.put_nowait(BATCH)  # on its way when the new stream came
    await clock.advance(0)
    with pytest.raises(FeedReplaced):
        await anext(old.hears)
    assert facts.facts(frozenset()) == []
    new.says.put_nowait(BATCH)
    assert (await anext(new.hears)).ack.sequence == 1
    assert len(facts.facts(frozenset())) == 1
    await new.hears.aclose()  # type: ignore[attr-defined] # an async generator
    assert feeds.sessions == ()


async def test_the_end_of_a_stream_leaves_no_task_behind() -> None:
    clock, changes = FakeClock(), Changes()
    feeds = Feeds(changes, 10)
    streams = FeedStreams(feeds, Report(Policies(POLICY), MemoryFactStore(clock), clock), clock)
    before = asyncio.all_tasks()
    for _ in range(3):
        side = Side(streams)
        await anext(side.hears)
        side.says.put_nowait(BATCH)
        await anext(side.hears)
        await side.hears.aclose()  # type: ignore[attr-defined]
    await clock.advance(0)
    assert asyncio.all_tasks() == before
    assert feeds.sessions == ()
