"""AdmissionService: map, call, map back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, TypeAlias

import grpc
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import admission_pb2_grpc as rpc
from tidegate.v1 import types_pb2

from tidegate_server.core.model import SECOND, Caller, Nanos
from tidegate_server.errors import FieldViolation, InvalidRequest, TidegateError
from tidegate_server.ports import Clock
from tidegate_server.rpc import mapping
from tidegate_server.rpc.admit_answers import AdmitAnswers, batch_answer
from tidegate_server.rpc.fact_mapping import fact_message, observation_of
from tidegate_server.rpc.feed_stream import (
    FeedStreams,
    check_batch_size,
    check_collector_id,
    item_results,
    retraction_of,
)
from tidegate_server.rpc.guard import Context, current_caller
from tidegate_server.rpc.status import item_error
from tidegate_server.usecases.admit import Admission, AdmitAsk, FlowContext
from tidegate_server.usecases.capacity import Capacity
from tidegate_server.usecases.catalog import Catalog
from tidegate_server.usecases.cold_wait import WaitBudget
from tidegate_server.usecases.log_admissions import Admits
from tidegate_server.usecases.pin import EstablishPin, LookUpPin
from tidegate_server.usecases.report import Report

MAX_BATCH = 256
ANSWER_MARGIN: Nanos = SECOND // 10
"""What is kept of a caller's deadline to bring the answer back; of a short one, a fifth."""

_Answer: TypeAlias = Admission | BaseException

FlowContexts = Callable[[wire.AdmitRequest, Context], FlowContext | None]


class Verbs(NamedTuple):
    """The use cases behind the methods."""

    admit: Admits
    look_up: LookUpPin
    establish: EstablishPin
    capacity: Capacity
    catalog: Catalog
    report: Report
    streams: FeedStreams


class AdmissionServicer(rpc.AdmissionServiceServicer):
    """One method a verb. `flow_contexts` finds the flow that an admission names."""

    def __init__(self, verbs: Verbs, clock: Clock, flow_contexts: FlowContexts, default_deadline: Nanos) -> None:
        self._verbs = verbs
        self._clock = clock
        self._flow_contexts = flow_contexts
        self._default_deadline = default_deadline
        self._answers = AdmitAnswers()

    async def Admit(self, request: wire.AdmitRequest, context: Context) -> wire.AdmitResponse:
        """One admission."""
        return mapping.admit_response(await self._admit(request, context))

    async def admit_serialized(self, request: wire.AdmitRequest, context: Context) -> bytes:
        """Admit with its answer as bytes: what is served."""
        return self._answers.answer(await self._admit(request, context))

    async def _admit(self, request: wire.AdmitRequest, context: Context) -> Admission:
        ask, caller = self._ask(request, context), current_caller()
        at_once = self._verbs.admit.at_once(ask, caller)
        return at_once or await self._verbs.admit(ask, caller, self._budget(context))

    async def AdmitBatch(self, request: wire.AdmitBatchRequest, context: Context) -> wire.AdmitBatchResponse:
        """Many at once: one shared cold wait, and an error of one item is that item's alone."""
        return wire.AdmitBatchResponse.FromString(await self.batch_serialized(request, context))

    async def batch_serialized(self, request: wire.AdmitBatchRequest, context: Context) -> bytes:
        """AdmitBatch with its answer as bytes: what is served."""
        if len(request.requests) > MAX_BATCH:
            raise InvalidRequest([FieldViolation("requests", f"has more than {MAX_BATCH} items")])
        caller, budget = current_caller(), self._budget(context)
        answers = [self._first_look(item, context, caller) for item in request.requests]
        asks = {place: answer for place, answer in enumerate(answers) if isinstance(answer, AdmitAsk)}
        late = (self._verbs.admit(ask, caller, budget) for ask in asks.values())
        for place, answer in zip(asks, await asyncio.gather(*late, return_exceptions=True), strict=True):
            answers[place] = answer
        return batch_answer(map(self._batch_result, answers))

    def _first_look(self, request: wire.AdmitRequest, context: Context, caller: Caller) -> _Answer | AdmitAsk:
        """An item's answer if it needs no await (a task each costs more than the answer), else what to ask for."""
        try:
            ask = self._ask(request, context)
            return self._verbs.admit.at_once(ask, caller) or ask
        except TidegateError as error:
            return error

    def _batch_result(self, answer: _Answer | AdmitAsk) -> bytes | types_pb2.ItemError:
        if isinstance(answer, Admission):
            return self._answers.answer(answer)
        assert isinstance(answer, BaseException)
        if not isinstance(answer, TidegateError | TimeoutError):
            raise answer
        return item_error(answer)

    def _ask(self, request: wire.AdmitRequest, context: Context) -> AdmitAsk:
        return mapping.ask_of(request, self._flow_contexts(request, context))

    async def Pin(self, request: wire.PinRequest, context: Context) -> wire.PinResponse:
        """Look a binding up, or make it."""
        asked = (request.model, request.worker_id, request.tenant)
        if request.mode == types_pb2.PIN_MODE_LOOKUP:
            found = await self._verbs.look_up(*asked, current_caller())
            return mapping.looked_up_response(found, self._clock.monotonic())
        if request.mode == types_pb2.PIN_MODE_ESTABLISH:
            budget = self._budget(context)
            made = await self._verbs.establish(*asked, request.reasoning_effort, current_caller(), budget)
            return mapping.established_response(made)
        raise InvalidRequest([FieldViolation("mode", "must be LOOKUP or ESTABLISH")])

    async def Capacity(self, request: wire.CapacityRequest, context: Context) -> wire.CapacityResponse:
        """Facts now, and what they mean for a route."""
        found = await self._verbs.capacity(tuple(request.providers), request.model)
        return wire.CapacityResponse(
            facts=[fact_message(fact, found.now, found.wall) for fact in found.facts],
            evaluations=mapping.evaluation_messages(found.evaluations, found.now, found.wall, found.passive),
        )

    async def Catalog(self, request: wire.CatalogRequest, context: Context) -> wire.CatalogResponse:
        """What a caller may ask for."""
        catalog = self._verbs.catalog
        rows = [mapping.catalog_model(row) for row in catalog(request.include_hidden)]
        return wire.CatalogResponse(models=rows, features=catalog.features)

    async def ReportCapacity(
        self, request: wire.ReportCapacityRequest, context: Context
    ) -> wire.ReportCapacityResponse:
        """A batch without a stream; what is retracted goes first."""
        check_collector_id(request.collector_id, "collector_id")
        check_batch_size(request, "observations")
        retraction = retraction_of(request.retract) if request.HasField("retract") else None
        observations = [observation_of(item) for item in request.observations]
        told = await self._verbs.report(current_caller(), request.collector_id, observations, retraction)
        return wire.ReportCapacityResponse(results=item_results(told))

    async def CapacityFeed(
        self, request_iterator: AsyncIterator[wire.CapacityFeedRequest], context: Context
    ) -> AsyncIterator[wire.CapacityFeedResponse]:
        """A collector's stream."""
        async for response in self._verbs.streams.serve(request_iterator, current_caller()):
            yield response

    def _budget(self, context: Context) -> WaitBudget:
        """Until when this call may wait: the caller's deadline or the server's own cap, less the way back."""
        remaining = context.time_remaining()
        left = self._default_deadline
        if remaining is not None:
            left = min(left, int(remaining * SECOND))
        return WaitBudget(self._clock.monotonic() + left - min(left // 5, ANSWER_MARGIN))


def add_to(server: grpc.aio.Server, servicer: AdmissionServicer) -> str:
    """Serve it; return the service's full name."""
    rpc.add_AdmissionServiceServicer_to_server(servicer, server)
    name = wire.DESCRIPTOR.services_by_name["AdmissionService"].full_name
    server.add_registered_method_handlers(  # in place of the generated ones: these answer with bytes
        name,
        {
            "Admit": grpc.unary_unary_rpc_method_handler(servicer.admit_serialized, wire.AdmitRequest.FromString),
            "AdmitBatch": grpc.unary_unary_rpc_method_handler(
                servicer.batch_serialized, wire.AdmitBatchRequest.FromString
            ),
        },
    )
    return name
