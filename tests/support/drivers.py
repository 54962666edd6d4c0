"""Two ways to run a decision vector: the use cases alone, and a running server over the wire."""

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict
from tidegate import AsyncClient
from tidegate.errors import InvalidArgument, TidegateError
from tidegate.v1 import admission_pb2, operator_pb2, types_pb2
from tidegate_server.config import ConfigurationSource
from tidegate_server.core.model import Blocker
from tidegate_server.core.pins import PinCodec
from tidegate_server.errors import InvalidRequest, NotFound
from tidegate_server.ports import PinFilter
from tidegate_server.rpc import mapping
from tidegate_server.rpc.fact_mapping import observation_of
from tidegate_server.rpc.feed_stream import retraction_of
from tidegate_server.stores.memory_facts import MemoryFactStore
from tidegate_server.stores.memory_pins import MemoryPinStore
from tidegate_server.testing import FakeClock
from tidegate_server.usecases.admit import Admit
from tidegate_server.usecases.changes import Changes
from tidegate_server.usecases.clear_blockers import ClearBlockers
from tidegate_server.usecases.cold_wait import ColdWait, WaitBudget
from tidegate_server.usecases.feeds import Feeds
from tidegate_server.usecases.identify import LOCAL_CALLER
from tidegate_server.usecases.pin import EstablishPin, LookUpPin
from tidegate_server.usecases.pins_operator import RetirePins
from tidegate_server.usecases.policies import Policies
from tidegate_server.usecases.report import Report
from tidegate_server.wiring.clock import SystemClock
from tidegate_server.wiring.run import Running, start

from tests.support.vectors import Json, Rejected

KEY = b"k" * 64


def write(config: Json, directory: Path, **more: Any) -> Path:
    """The configuration as a file."""
    path = directory / "tidegate.json"
    path.write_text(json.dumps({**config, **more}))
    return path


class UseCases:
    """The decision without a wire: use cases, stores in memory, a clock that stands."""

    def __init__(self, config: Json, directory: Path) -> None:
        self._directory = directory
        self._source = ConfigurationSource(write(config, directory), {})
        self._clock = FakeClock()
        self._facts = MemoryFactStore(self._clock)
        self._pins = MemoryPinStore()
        self._pin_ids = PinCodec(KEY).pin_id
        self._policies = Policies(self._source.policy)
        changes = Changes()
        wait = ColdWait(changes, Feeds(changes, 1), self._clock, max_waiters=1)
        self._admit = Admit(self._policies, self._facts, self._pins, self._pin_ids, wait, self._clock, lambda: "id")
        self._report = Report(self._policies, self._facts, self._clock)

    def _no_wait(self) -> WaitBudget:
        return WaitBudget(self._clock.monotonic())

    async def report(self, collector: str, observations: list[Json], retract: Json | None) -> list[Json]:
        """See Driver."""
        items = [observation_of(ParseDict(item, types_pb2.Observation())) for item in observations]
        taken = None if retract is None else retraction_of(ParseDict(retract, admission_pb2.Retract()))
        told = await self._report(LOCAL_CALLER, collector, items, taken)
        assert all(bool(item.reason) == (item.result.name == "REFUSED") for item in told)
        return [{"result": f"OBSERVATION_RESULT_{item.result.name}"} for item in told]

    async def admit(self, request: Json) -> Json | Rejected:
        """See Driver."""
        ask = mapping.ask_of(ParseDict(request, admission_pb2.AdmitRequest()), None)
        try:
            return MessageToDict(mapping.admit_response(await self._admit(ask, LOCAL_CALLER, self._no_wait())))
        except (InvalidRequest, NotFound) as error:
            return _rejected(error)

    async def pin(self, request: Json) -> Json | Rejected:
        """See Driver."""
        r = ParseDict(request, admission_pb2.PinRequest())
        try:
            if r.mode == types_pb2.PIN_MODE_LOOKUP:
                look_up = LookUpPin(self._policies, self._pins, self._pin_ids)
                found = await look_up(r.model, r.worker_id, r.tenant, LOCAL_CALLER)
                return MessageToDict(mapping.looked_up_response(found, self._clock.monotonic()))
            if r.mode == types_pb2.PIN_MODE_ESTABLISH:
                establish = EstablishPin(self._admit)
                effort, budget = r.reasoning_effort, self._no_wait()
                made = await establish(r.model, r.worker_id, r.tenant, effort, LOCAL_CALLER, budget)
                return MessageToDict(mapping.established_response(made))
        except (InvalidRequest, NotFound) as error:
            return _rejected(error)
        return Rejected("INVALID_ARGUMENT", ["mode"])

    async def reload(self, config: Json) -> None:
        """See Driver."""
        write(config, self._directory)
        assert self._source.reload(), self._source.error
        self._policies.current = self._source.policy
        self._facts.relimit(self._source.policy.freshness)

    async def retire(self, request: Json) -> None:
        """See Driver."""
        which = PinFilter("", request.get("model", ""), request.get("provider", ""))
        await RetirePins(self._pins, self._clock)(LOCAL_CALLER, which, why=request["reason"], dry_run=False)

    async def clear(self, request: Json) -> None:
        """See Driver."""
        blocker = Blocker[request.get("blocker", "BLOCKER_NONE").removeprefix("BLOCKER_")]
        clear = ClearBlockers(self._policies, self._facts, self._clock)
        await clear(request["provider"], request.get("model", ""), blocker, request["reason"], LOCAL_CALLER)

    async def corrupt_pin(self, model: str, worker_id: str) -> None:
        """See Driver."""
        self._pins.corrupt(self._pin_ids(LOCAL_CALLER.namespace, "", model, worker_id))


def _rejected(error: InvalidRequest | NotFound) -> Rejected:
    if isinstance(error, NotFound):
        return Rejected("NOT_FOUND", [])
    return Rejected("INVALID_ARGUMENT", [violation.field for violation in error.violations])


class Server:
    """A running server in this process, spoken to over a socket of its own."""

    def __init__(self, running: Running, client: AsyncClient, directory: Path) -> None:
        self._running = running
        self._client = client
        self._directory = directory
        self._settings = {"listen": "127.0.0.1:0", "stateDirectory": str(directory / "state")}

    @classmethod
    async def start(cls, config: Json, directory: Path, stack: AsyncExitStack) -> "Server":
        """Start one; `stack` stops it."""
        settings = {"listen": "127.0.0.1:0", "stateDirectory": str(directory / "state")}
        source = ConfigurationSource(write(config, directory, **settings), {})
        running = await start(source, SystemClock(), stack)
        token = directory / "state" / "local.token"
        client = await stack.enter_async_context(AsyncClient(str(running.addresses[0]), token_file=token))
        return cls(running, client, directory)

    async def report(self, collector: str, observations: list[Json], retract: Json | None) -> list[Json]:
        """See Driver."""
        items = [ParseDict(item, types_pb2.Observation()) for item in observations]
        taken = None if retract is None else ParseDict(retract, admission_pb2.Retract())
        results = await self._client.report_capacity(collector, items, retract=taken)
        return [{"result": types_pb2.ObservationResult.Name(item.result)} for item in results]

    async def admit(self, request: Json) -> Json | Rejected:
        """See Driver."""
        message = ParseDict(request, admission_pb2.AdmitRequest())
        return await self._call(self._client._admission.Admit, message)

    async def pin(self, request: Json) -> Json | Rejected:
        """See Driver."""
        return await self._call(self._client._admission.Pin, ParseDict(request, admission_pb2.PinRequest()))

    async def _call(self, method: Any, message: Any) -> Json | Rejected:
        try:
            return MessageToDict(await self._client.call(method, message))
        except InvalidArgument as error:
            return Rejected("INVALID_ARGUMENT", [violation.field for violation in error.violations])
        except TidegateError as error:
            return Rejected(error.code.name, [])

    async def reload(self, config: Json) -> None:
        """See Driver."""
        write(config, self._directory, **self._settings)
        await self._running.reload()
        assert not self._running.source.error, self._running.source.error

    async def retire(self, request: Json) -> None:
        """See Driver."""
        await self._client.call(self._client._operator.RetirePins, ParseDict(request, operator_pb2.RetirePinsRequest()))

    async def clear(self, request: Json) -> None:
        """See Driver."""
        message = ParseDict(request, operator_pb2.ClearBlockersRequest())
        await self._client.call(self._client._operator.ClearBlockers, message)

    async def corrupt_pin(self, model: str, worker_id: str) -> None:
        """A running server holds its pins in memory; tests/integration/pins damages the files of a stopped one."""
        raise NotImplementedError
