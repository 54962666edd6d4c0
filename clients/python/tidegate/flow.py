"""Wrap a call into an agent: enter the hop, pass its trace context on, exit whatever happens.

    with agent_call(client, task.traceparent, "coder", tracestate=task.tracestate, caller_agent="planner") as hop:
        answer = httpx.post(url, json=task.body, headers=hop.headers)
        hop.used(answer.json()["usage"]["total_tokens"])

The agent is not called unless the hop was granted: a refusal raises `HopRefused`, and anything but an answer a
`TidegateError`. The exit is sent when the block ends, by an error or a cancellation, too. What the exit itself meets is
logged and not raised: the agent's answer is there, and the hop's flow ends by its time at the latest.

With OpenTelemetry make the call in the context that its propagator extracts from `hop.headers`; spans in between then
carry the signed `tracestate` on, and whatever the agent calls next is known to come from this hop.
"""

import asyncio
import logging
import secrets
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from tidegate.aio import AsyncClient
from tidegate.client import Client
from tidegate.errors import TidegateError
from tidegate.v1 import flow_pb2, types_pb2

_log = logging.getLogger(__name__)


class HopOptions(TypedDict, total=False):
    """What an agent call may say besides trace and target; the names and meanings are those of EnterHopRequest.

    Without `caller_agent` it is the gateway's own call, which starts a flow. Without `request_id` one is minted, so
    that a repeated EnterHop charges once.
    """

    tracestate: str
    caller_agent: str
    request_id: str
    reserve_tokens: int
    profile: str


class HopRefused(Exception):
    """The flow guard said no: do not call the agent. `response` is the whole answer."""

    def __init__(self, response: flow_pb2.EnterHopResponse) -> None:
        self.response = response
        super().__init__(response.refusal.message or "the hop was not granted")

    @property
    def refusal(self) -> types_pb2.Refusal:
        """Why, for programs and for people; empty when the answer was not one that this client knows."""
        return self.response.refusal


@dataclass(slots=True)
class AgentHop:
    """A granted hop, while its agent works."""

    grant: flow_pb2.HopGrant
    tokens: int = field(default=0, init=False)
    """What the exit will report, beside what was recorded by RecordTokens."""

    @property
    def headers(self) -> dict[str, str]:
        """The trace context to send to the agent, unchanged."""
        return {"traceparent": self.grant.traceparent, "tracestate": self.grant.tracestate}

    def used(self, tokens: int) -> None:
        """Count tokens that the agent's work has used; not negative."""
        if tokens < 0:
            raise ValueError("tokens must not be negative")
        self.tokens += tokens


def new_traceparent(*, sampled: bool = True) -> str:
    """A traceparent for a task that has none yet: a fresh random trace id (W3C Trace Context level 2)."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-0{3 if sampled else 2}"


@contextmanager
def agent_call(
    client: Client, traceparent: str, target_agent: str, **options: Unpack[HopOptions]
) -> Iterator[AgentHop]:
    """Enter a hop into `target_agent` for the block, with the blocking client. Raises HopRefused, TidegateError."""
    hop = _granted(client.flows.enter_hop(_enter_request(traceparent, target_agent, options)))
    success = False
    try:
        yield hop
        success = True
    finally:
        try:
            client.flows.exit_hop(_exit_request(hop, success))
        except TidegateError as error:
            _not_exited(hop, error)


@asynccontextmanager
async def async_agent_call(
    client: AsyncClient, traceparent: str, target_agent: str, **options: Unpack[HopOptions]
) -> AsyncIterator[AgentHop]:
    """Enter a hop into `target_agent` for the block, with the asyncio client. Raises HopRefused, TidegateError.

    A cancellation while the hop is entered waits for the answer, and gives the hop back.
    """
    entering = asyncio.ensure_future(client.flows.enter_hop(_enter_request(traceparent, target_agent, options)))
    try:
        hop = _granted(await asyncio.shield(entering))
    except asyncio.CancelledError:
        await _finish(_leave(client, entering))
        raise
    success = False
    try:
        yield hop
        success = True
    finally:
        await _finish(_exit(client, hop, success))


async def _leave(client: AsyncClient, entering: asyncio.Future[flow_pb2.EnterHopResponse]) -> None:
    """Exit a hop that nobody waits for any more, if it is granted at all."""
    try:
        hop = _granted(await entering)
    except (HopRefused, TidegateError):
        return
    await _exit(client, hop, success=False)


async def _exit(client: AsyncClient, hop: AgentHop, success: bool) -> None:
    try:
        await client.flows.exit_hop(_exit_request(hop, success))
    except TidegateError as error:
        _not_exited(hop, error)


async def _finish(work: Coroutine[object, object, None]) -> None:
    """Do `work` to its end, in a task that is being cancelled, too; then let the cancellation go on."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


def _enter_request(traceparent: str, target_agent: str, options: HopOptions) -> flow_pb2.EnterHopRequest:
    request = flow_pb2.EnterHopRequest(traceparent=traceparent, target_agent=target_agent, **options)
    request.request_id = request.request_id or uuid.uuid4().hex
    return request


def _exit_request(hop: AgentHop, success: bool) -> flow_pb2.ExitHopRequest:
    return flow_pb2.ExitHopRequest(
        traceparent=hop.grant.traceparent,
        tracestate=hop.grant.tracestate,
        hop_id=hop.grant.hop_id,
        tokens=hop.tokens,
        success=success,
    )


def _granted(response: flow_pb2.EnterHopResponse) -> AgentHop:
    """The hop of an answer that is ADMITTED and has one; whatever else the answer is, the agent is not called."""
    if response.verdict != types_pb2.VERDICT_ADMITTED or not response.HasField("grant"):
        raise HopRefused(response)
    return AgentHop(response.grant)


def _not_exited(hop: AgentHop, error: TidegateError) -> None:
    _log.warning("hop %s of flow %s was not exited: %s", hop.grant.hop_id, hop.grant.flow_id, error)
