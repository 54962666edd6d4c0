"""The flow guard and the admissions on a loopback port, over any store, with a clock that the test moves."""

import asyncio
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, cast

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from tidegate.v1 import admission_pb2, admission_pb2_grpc, flow_pb2, flow_pb2_grpc, types_pb2
from tidegate_server.config import compile_policy, parse
from tidegate_server.core.decision_record import DecisionRecord
from tidegate_server.core.flow.ancestry import Keyring
from tidegate_server.core.flow.model import FlowLimits, FlowSettings
from tidegate_server.core.model import SECOND, Caller, Health, HealthState
from tidegate_server.core.pins import PinCodec
from tidegate_server.ports import FlowStore
from tidegate_server.rpc import admission, flow
from tidegate_server.rpc.guard import Guard
from tidegate_server.stores.guarded_flows import GuardedFlowStore
from tidegate_server.stores.memory_facts import MemoryFactStore
from tidegate_server.stores.memory_flows import MemoryFlowStore
from tidegate_server.stores.memory_pins import MemoryPinStore
from tidegate_server.testing import FakeClock, fact
from tidegate_server.usecases.admit import Admit
from tidegate_server.usecases.changes import Changes
from tidegate_server.usecases.cold_wait import ColdWait
from tidegate_server.usecases.feeds import Feeds
from tidegate_server.usecases.flow_status import WatchFlows
from tidegate_server.usecases.flows import EnterHop, FlowGuard
from tidegate_server.usecases.identify import Identify, Identity
from tidegate_server.usecases.policies import Policies

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
START = f"00-{TRACE}-00f067aa0ba902b7-01"
ADMITTED, REFUSED = types_pb2.VERDICT_ADMITTED, types_pb2.VERDICT_REFUSED
CODING = FlowLimits(max_tokens=5_000_000, timeout=1_800 * SECOND)
TOKENS = {
    "gateway": Caller("gateway"),
    "other": Caller("other", "other"),
    "child-only": Caller("child-only", start_flows=False),
}

ROUTE = {"purpose": "routine", "candidates": ["qwen/qwen-next"], "contextWindow": 32768, "maxContextBytes": 262144}
CONFIG: dict[str, Any] = {
    "providers": {"qwen": {"kind": "local", "credential": "none", "models": {"qwen-next": {"contextWindow": 131072}}}},
    "managedRouting": {"routes": {"managed/free": ROUTE, "managed/guarded": {**ROUTE, "requireFlow": True}}},
}


class Log:
    """A decision log that keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[DecisionRecord] = []

    def append(self, record: DecisionRecord | Callable[[], DecisionRecord]) -> bool:
        self.records.append(record() if callable(record) else record)
        return True


class Served:
    """A running service with what a test asks it through."""

    def __init__(self, store: FlowStore, clock: FakeClock) -> None:
        self.clock = clock
        self.store = GuardedFlowStore(store, clock)
        self.keyring = Keyring((b"k" * 32,))
        self.settings = FlowSettings({"": FlowLimits(), "coding": CODING})
        self.pins = MemoryPinStore()
        self.facts = MemoryFactStore(clock)
        self.log = Log()
        self.watch_flows = WatchFlows(self.store, queue=100, max_watchers=3)
        self.guard = FlowGuard(self.store, lambda: self.settings, lambda: self.keyring, lambda: secrets.token_hex(8))
        self.enter_hop: EnterHop
        self.admit_verb: Admit
        self.address = ""
        self.server: grpc.aio.Server
        self.channel: grpc.aio.Channel
        self.flows: flow_pb2_grpc.FlowServiceAsyncStub
        self.admissions: admission_pb2_grpc.AdmissionServiceAsyncStub

    def add_to(self, server: grpc.aio.Server) -> None:
        numbers = count(1)
        self.enter_hop = EnterHop(self.guard, self.log, self.clock, lambda: f"d{next(numbers)}")
        verbs = flow.FlowVerbs(self.guard, self.enter_hop, self.watch_flows, self.store)
        flow.add_to(server, flow.FlowServicer(verbs))
        changes = Changes()
        cold_wait = ColdWait(changes, Feeds(changes, 1), self.clock, max_waiters=1)
        policies = Policies(compile_policy(parse(json.dumps(CONFIG), {}, is_json=True)))
        pin_ids = PinCodec(secrets.token_bytes(64)).pin_id
        self.admit_verb = Admit(
            policies, self.facts, self.pins, pin_ids, cold_wait, self.clock, lambda: f"d{next(numbers)}"
        )
        unused = cast("Any", None)
        admission.add_to(
            server,
            admission.AdmissionServicer(
                admission.Verbs(self.admit_verb, unused, unused, unused, unused, unused, unused),
                self.clock,
                flow.flow_contexts(self.guard),
                30 * SECOND,
            ),
        )

    async def end(self) -> None:
        """Stop serving."""
        await self.server.stop(None)

    async def healthy_engine(self) -> None:
        """Let the one candidate be eligible."""
        health = Health(HealthState.HEALTHY)
        await self.facts.put([fact("qwen", "qwen-next", health, now=self.clock.monotonic())])

    async def enter(
        self,
        caller: str,
        target: str,
        within: flow_pb2.HopGrant | None = None,
        *,
        metadata: Sequence[tuple[str, str]] = (),
        **fields: Any,
    ) -> flow_pb2.EnterHopResponse:
        """EnterHop from `within` (None: from the gateway's own trace)."""
        context = {"traceparent": START} if within is None else carried(within)
        request = flow_pb2.EnterHopRequest(**{**context, "caller_agent": caller, "target_agent": target, **fields})
        return await self.flows.EnterHop(request, metadata=tuple(metadata))

    async def grant(
        self, caller: str, target: str, within: flow_pb2.HopGrant | None = None, **fields: Any
    ) -> flow_pb2.HopGrant:
        answer = await self.enter(caller, target, within, **fields)
        assert answer.verdict == ADMITTED, answer
        return answer.grant

    async def refusal(self, caller: str, target: str, within: flow_pb2.HopGrant | None = None, **fields: Any) -> str:
        return code(await self.enter(caller, target, within, **fields))

    async def exit(self, grant: flow_pb2.HopGrant, tokens: int = 0, success: bool = True) -> flow_pb2.ExitHopResponse:
        return await self.flows.ExitHop(
            flow_pb2.ExitHopRequest(**carried(grant), hop_id=grant.hop_id, tokens=tokens, success=success)
        )

    async def flow(self, flow_id: str = TRACE) -> flow_pb2.Flow:
        return (await self.flows.GetFlow(flow_pb2.GetFlowRequest(flow_id=flow_id))).flow

    async def admit(self, model: str = "managed/free", worker: str = "w", **fields: Any) -> admission_pb2.AdmitResponse:
        request = admission_pb2.AdmitRequest(model=model, worker_id=worker, request_bytes=1, **fields)
        return await self.admissions.Admit(request)


def carried(grant: flow_pb2.HopGrant) -> dict[str, Any]:
    """The trace context of a grant, as an agent passes it on."""
    return {"traceparent": grant.traceparent, "tracestate": grant.tracestate}


def code(answer: flow_pb2.EnterHopResponse | admission_pb2.AdmitResponse) -> str:
    assert answer.verdict == REFUSED, answer
    return answer.refusal.code


def bearer(name: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {name}"),)


class Rejected(Exception):
    """A status, unpacked: its code, ErrorInfo's reason and metadata, and the fields of BadRequest."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(str(error))
        self.code = error.code()
        self.reason = ""
        self.fields: list[str] = []
        self.retry = False
        status = rpc_status.from_call(cast("Any", error))
        for detail in status.details if status is not None else ():
            for kind in (error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()):
                if detail.Unpack(kind):
                    self._take(kind)

    def _take(self, detail: object) -> None:
        if isinstance(detail, error_details_pb2.ErrorInfo):
            self.reason = detail.reason
        elif isinstance(detail, error_details_pb2.BadRequest):
            self.fields = [violation.field for violation in detail.field_violations]
        else:
            self.retry = True


async def rejected(call: Any) -> Rejected:
    """The status that a call ended with; it must have ended with one."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return Rejected(error)
    raise AssertionError(f"an answer where a status was due: {answer}")


@asynccontextmanager
async def serving(make_store: Callable[[FakeClock], FlowStore] = MemoryFlowStore) -> AsyncIterator[Served]:
    """The service over `make_store(clock)`; callers without a token are a gateway of `default` that starts flows."""
    clock = FakeClock()
    served = Served(make_store(clock), clock)
    identities = [Identity(caller, hashlib.sha256(name.encode()).digest()) for name, caller in TOKENS.items()]
    server = grpc.aio.server(interceptors=[Guard(Identify(identities, open_to_local=True), max_calls=1_000)])
    served.server = server
    served.add_to(server)
    served.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with grpc.aio.insecure_channel(served.address) as channel:
            served.channel = channel
            served.flows = flow_pb2_grpc.FlowServiceStub(channel)
            served.admissions = admission_pb2_grpc.AdmissionServiceStub(channel)
            yield served
    finally:
        await served.end()
        await served.store.close()
        await asyncio.sleep(0)
