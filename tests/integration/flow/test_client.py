"""The Python helper around an agent call: it enters, passes the headers on, and exits whatever happens."""

import asyncio
import logging
from typing import Any

import pytest
from tidegate import AsyncClient, Client, TidegateError
from tidegate.flow import HopRefused, agent_call, async_agent_call, new_traceparent
from tidegate.retry import NO_RETRY
from tidegate.v1 import flow_pb2, types_pb2
from tidegate_server.core.flow.tracecontext import Traceparent, parse_traceparent

from tests.integration.flow.serving import START, Served


async def hops(served: Served) -> list[flow_pb2.FlowHop]:
    return list((await served.flow()).hops)


async def test_the_hop_is_entered_its_headers_passed_on_and_exited(served: Served) -> None:
    async with AsyncClient(served.address) as client:
        async with async_agent_call(client, START, "A", reserve_tokens=50) as outer:
            outer.used(3)
            assert (await hops(served))[0].tokens == 50
            async with async_agent_call(
                client, outer.headers["traceparent"], "B", tracestate=outer.headers["tracestate"], caller_agent="A"
            ) as inner:
                assert list(inner.grant.chain) == ["A", "B"]
            outer.used(4)
        first, second = await hops(served)
        assert (first.tokens, first.success, first.HasField("end_time")) == (7, True, True)
        assert (second.tokens, second.success, second.HasField("end_time")) == (0, True, True)


async def test_an_error_and_a_cancellation_exit_the_hop_too(served: Served) -> None:
    async with AsyncClient(served.address) as client:
        with pytest.raises(ZeroDivisionError):
            async with async_agent_call(client, START, "A"):
                raise ZeroDivisionError
        inside = asyncio.Event()

        async def work() -> None:
            async with async_agent_call(client, START, "B"):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(work())
        await inside.wait()
        task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
            task.cancel()  # again, while the exit is on its way
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [(hop.success, hop.HasField("end_time")) for hop in await hops(served)] == [(False, True)] * 2


async def test_a_cancellation_while_entering_leaves_no_open_hop(served: Served) -> None:
    async with AsyncClient(served.address) as client:
        for turns in range(15):

            async def work() -> None:
                async with async_agent_call(client, START, "A"):
                    await asyncio.Event().wait()

            task = asyncio.ensure_future(work())
            for _ in range(turns):
                await asyncio.sleep(0.0002)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        listed = await served.flows.ListFlows(flow_pb2.ListFlowsRequest(open_only=True))
        assert not listed.flows


async def test_a_refusal_calls_nobody(served: Served) -> None:
    async with AsyncClient(served.address) as client, async_agent_call(client, START, "A") as hop:
        with pytest.raises(HopRefused, match="cycle") as refused:
            async with async_agent_call(client, **_within(hop.headers), target_agent="A", caller_agent="A"):
                raise AssertionError("the agent was called")
        assert refused.value.refusal.code == "flow_cycle_detected"


@pytest.mark.parametrize(
    "answer",
    [
        flow_pb2.EnterHopResponse(),
        flow_pb2.EnterHopResponse(verdict=99),  # type: ignore[arg-type]
        flow_pb2.EnterHopResponse(verdict=types_pb2.VERDICT_ADMITTED),
        flow_pb2.EnterHopResponse(verdict=types_pb2.VERDICT_BYPASSED, grant=flow_pb2.HopGrant(hop_id="1")),
        flow_pb2.EnterHopResponse(verdict=types_pb2.VERDICT_REFUSED, grant=flow_pb2.HopGrant(hop_id="1")),
    ],
    ids=["empty", "unknown", "no grant", "bypassed", "refused"],
)
async def test_case_49_only_a_granted_hop_calls_the_agent(
    served: Served, answer: flow_pb2.EnterHopResponse, monkeypatch: Any
) -> None:
    async with AsyncClient(served.address) as client:

        async def enter_hop(request: flow_pb2.EnterHopRequest) -> flow_pb2.EnterHopResponse:
            return answer

        monkeypatch.setattr(client.flows, "enter_hop", enter_hop)
        with pytest.raises(HopRefused):
            async with async_agent_call(client, START, "A"):
                raise AssertionError("the agent was called")


async def test_case_49_a_status_calls_nobody(served: Served) -> None:
    async with AsyncClient(served.address) as client:
        with pytest.raises(TidegateError):
            async with async_agent_call(client, "garbage", "A"):
                raise AssertionError("the agent was called")
    async with AsyncClient("127.0.0.1:1", retry=NO_RETRY, timeout=0.5) as nobody:
        with pytest.raises(TidegateError):
            async with async_agent_call(nobody, START, "A"):
                raise AssertionError("the agent was called")


async def test_what_the_exit_meets_does_not_hide_the_agents_answer(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(served.address, retry=NO_RETRY) as client:
        with caplog.at_level(logging.WARNING, "tidegate.flow"):
            async with async_agent_call(client, START, "A") as hop:
                await served.guard.cancel(_granted_of(hop.grant))
        assert "was not exited" in caplog.text


async def test_the_blocking_helper_does_the_same(served: Served) -> None:
    def work() -> str:
        with Client(served.address) as client:
            with agent_call(client, START, "A", reserve_tokens=9) as hop:
                hop.used(2)
                with pytest.raises(ValueError, match="negative"):
                    hop.used(-1)
            with pytest.raises(ZeroDivisionError), agent_call(client, **_within(hop.headers), target_agent="B"):
                raise ZeroDivisionError
            with pytest.raises(HopRefused), agent_call(client, new_traceparent(), "B", caller_agent="A"):
                raise AssertionError("the agent was called")
        return hop.grant.hop_id

    hop_id = await asyncio.to_thread(work)
    first, second = await hops(served)
    assert (first.hop_id, first.tokens, first.success) == (hop_id, 2, True)
    assert (second.target_agent, second.success, second.HasField("end_time")) == ("B", False, True)


@pytest.mark.parametrize(("sampled", "flags"), [(True, 3), (False, 2)])
def test_a_new_traceparent_is_valid_and_new(sampled: bool, flags: int) -> None:
    first, second = (parse_traceparent(new_traceparent(sampled=sampled)) for _ in range(2))
    assert isinstance(first, Traceparent)
    assert isinstance(second, Traceparent)
    assert first.flags == flags
    assert first.trace_id != second.trace_id


def _within(headers: dict[str, str]) -> dict[str, Any]:
    return dict(headers)


def _granted_of(grant: flow_pb2.HopGrant) -> Any:
    from types import SimpleNamespace  # noqa: PLC0415 - for this one helper

    from tidegate_server.core.flow.model import FlowKey  # noqa: PLC0415

    return SimpleNamespace(key=FlowKey("default", grant.flow_id), hop=SimpleNamespace(hop_id=grant.hop_id))
