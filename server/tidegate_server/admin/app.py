"""The paths, and what stands in front of each: who calls, how errors leave, which headers a browser gets."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from typing import Any, NamedTuple, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate_server.admin import views
from tidegate_server.admin.access import ANYBODY, IDENTIFIED, READERS, Doorkeeper
from tidegate_server.admin.answers import Json, error_response, json_response, message_data
from tidegate_server.admin.events import stream
from tidegate_server.admin.files import page_routes
from tidegate_server.core.model import Caller
from tidegate_server.errors import FieldViolation, InvalidRequest, ShuttingDown
from tidegate_server.metrics import CONTENT_TYPE, Exposition, Rates
from tidegate_server.ports import FlowStore
from tidegate_server.rpc import flow_mapping, selection_mapping
from tidegate_server.rpc.access import Access
from tidegate_server.rpc.selection import SelectionVerbs
from tidegate_server.rpc.status import is_expected
from tidegate_server.usecases.capacity import Capacity
from tidegate_server.usecases.catalog import Catalog
from tidegate_server.usecases.flow_status import FlowSnapshot, WatchFlows, get_flow, list_flows, page_token
from tidegate_server.usecases.identify import Identify
from tidegate_server.usecases.list_decisions import DecisionsAsk
from tidegate_server.usecases.outlook import Outlook
from tidegate_server.usecases.pins_operator import hex_bytes, page_limit
from tidegate_server.usecases.policies import Policies
from tidegate_server.usecases.status import Status
from tidegate_server.usecases.watch_decisions import WatchedDecisions

log = logging.getLogger("tidegate.admin")

Endpoint: TypeAlias = Callable[[Request, Caller], Awaitable[Response]]

DECISIONS = 50
"""Decisions on a page when the caller says nothing."""

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class AdminVerbs(NamedTuple):
    """The use cases behind the paths. `selection` gives those of the configuration in force."""

    policies: Policies
    capacity: Capacity
    outlook: Outlook
    catalog: Catalog
    status: Status
    flows: FlowStore
    watch_flows: WatchFlows
    selection: Callable[[], SelectionVerbs]
    decisions: WatchedDecisions
    rates: Rates
    exposition: Exposition
    is_ready: Callable[[], bool]


class AdminApp:
    """The ASGI application. `is_local`: only this machine reaches its listener."""

    def __init__(self, verbs: AdminVerbs, identify: Callable[[], Identify], *, is_local: bool) -> None:
        self._verbs = verbs
        self._doorkeeper = Doorkeeper(identify, is_local=is_local)
        self._closing = asyncio.Event()
        routes = [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            *page_routes(),
            *(Route(path, self._guarded(endpoint, access)) for path, endpoint, access in self._table()),
        ]
        self.asgi: ASGIApp = _SecurityHeaders(Starlette(routes=routes, exception_handlers={HTTPException: _http_error}))

    def close(self) -> None:
        """End the streams; what is asked from now on is refused."""
        self._closing.set()

    def _table(self) -> tuple[tuple[str, Endpoint, Access], ...]:
        return (
            ("/metrics", self._metrics, READERS),
            ("/health", self._health, IDENTIFIED),
            ("/v1/models", self._models, ANYBODY),
            ("/v1/model-catalog", self._model_catalog, ANYBODY),
            ("/api/status", self._status, READERS),
            ("/api/capacity", self._capacity, ANYBODY),
            ("/api/outlook", self._outlook, READERS),
            ("/api/rates", self._rates, READERS),
            ("/api/decisions", self._list_decisions, READERS),
            ("/api/decisions/events", self._decision_events, READERS),
            ("/api/decisions/{decision_id}", self._decision, READERS),
            ("/api/flows", self._list_flows, READERS),
            ("/api/flows/events", self._flow_events, READERS),
            ("/api/flows/{flow_id}", self._flow, READERS),
            ("/api/flows/{flow_id}/events", self._flow_events, READERS),
            ("/api/orchestrator/stats", self._stats, READERS),
        )

    def _guarded(self, endpoint: Endpoint, access: Access) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            try:
                if self._closing.is_set():
                    raise ShuttingDown
                return await endpoint(request, self._doorkeeper.admit(request, access))
            except Exception as error:
                if not is_expected(error):
                    log.error("%s failed", request.url.path, exc_info=error)
                return error_response(error)

        return handle

    async def _healthz(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, _: Request) -> Response:
        ready = self._verbs.is_ready() and not self._closing.is_set()
        return PlainTextResponse("ready\n" if ready else "not ready\n", 200 if ready else 503)

    async def _metrics(self, _: Request, __: Caller) -> Response:
        return Response(await self._verbs.exposition.text(), headers={"content-type": CONTENT_TYPE})

    async def _health(self, _: Request, __: Caller) -> Response:
        now = views.status(self._verbs.status())
        return json_response({"status": "ok" if now["ready"] else "not ready", **now}, 200 if now["ready"] else 503)

    async def _status(self, _: Request, __: Caller) -> Response:
        return json_response(views.status(self._verbs.status()))

    async def _models(self, _: Request, __: Caller) -> Response:
        return json_response(views.models(self._verbs.catalog(False), self._verbs.policies.current))

    async def _model_catalog(self, _: Request, __: Caller) -> Response:
        catalog = self._verbs.catalog
        return json_response(views.model_catalog(catalog(True), catalog.features))

    async def _capacity(self, request: Request, _: Caller) -> Response:
        providers, model = tuple(request.query_params.getlist("provider")), request.query_params.get("model", "")
        if not providers and not model:
            return json_response(await asyncio.to_thread(views.known, self._verbs.outlook.known()))
        found = await self._verbs.capacity(providers, model)
        return json_response(await asyncio.to_thread(views.capacity, found))

    async def _outlook(self, _: Request, __: Caller) -> Response:
        found, policy = self._verbs.outlook(), self._verbs.policies.current
        return json_response(await asyncio.to_thread(views.outlook, found, policy))

    async def _rates(self, _: Request, __: Caller) -> Response:
        return json_response(views.rates(self._verbs.rates.samples()))

    async def _list_decisions(self, request: Request, caller: Caller) -> Response:
        asked = request.query_params
        ask = DecisionsAsk(asked.get("session_id", ""), asked.get("model", ""), asked.get("kind", ""))
        before = int.from_bytes(_place(asked.get("page_token", "")), "big")
        limit = page_limit(_number(request, "page_size") or DECISIONS)
        page = await self._verbs.selection().list_decisions(ask, caller, before=before, limit=limit)
        rows = await asyncio.to_thread(lambda: [views.decision_row(record) for record in page.records])
        token = page.next_before.to_bytes(8, "big").hex() if page.next_before else ""
        return json_response({"decisions": rows, "next_page_token": token})

    async def _decision(self, request: Request, caller: Caller) -> Response:
        ask = DecisionsAsk(decision_id=request.path_params["decision_id"])
        page = await self._verbs.selection().list_decisions(ask, caller, before=0, limit=1)
        return json_response(await asyncio.to_thread(views.decision_whole, page.records[0]))

    async def _decision_events(self, _: Request, caller: Caller) -> Response:
        return self._streamed(self._decisions_of(caller), caller)

    async def _decisions_of(self, caller: Caller) -> AsyncIterator[Json]:
        async with aclosing(self._verbs.decisions.watch(caller)) as records:
            async for record in records:
                yield {"event": "decision", **views.decision_row(record)}

    async def _list_flows(self, request: Request, caller: Caller) -> Response:
        page, now = await list_flows(
            self._verbs.flows,
            caller,
            page_size=_number(request, "page_size"),
            page_token=request.query_params.get("page_token", ""),
            open_only=request.query_params.get("open_only", "") in ("1", "true"),
        )
        rows = [views.flow(flow, now) for flow in page.flows]
        return json_response({"flows": rows, "next_page_token": page_token(page.next)})

    async def _flow(self, request: Request, caller: Caller) -> Response:
        found = await get_flow(self._verbs.flows, request.path_params["flow_id"], caller)
        return json_response(views.flow(*found))

    async def _flow_events(self, request: Request, caller: Caller) -> Response:
        return self._streamed(self._flows_of(request.path_params.get("flow_id", ""), caller), caller)

    async def _flows_of(self, flow_id: str, caller: Caller) -> AsyncIterator[Json]:
        async with aclosing(self._verbs.watch_flows(flow_id, caller)) as events:
            async for event in events:
                told = message_data(flow_mapping.watch_response(event))
                kind = next(name for name in told if name != "flow_id")
                if isinstance(event, FlowSnapshot):
                    told[kind] = views.flow(*event)
                yield {"event": kind, **told}

    def _streamed(self, events: AsyncIterator[Json], caller: Caller) -> Response:
        return stream(events, self._closing, lambda: self._doorkeeper.knows(caller))

    async def _stats(self, _: Request, caller: Caller) -> Response:
        stats = await self._verbs.selection().stats(caller)
        return json_response(message_data(selection_mapping.stats_response(stats)))


class _SecurityHeaders:
    """Adds headers that keep a browser from running, framing or sending what is not ours."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._headers = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(h for h in self._headers if h[0] not in given)]
            await send(message)

        await self._app(scope, receive, sent)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason = {404: "NO_SUCH_PATH", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code, "HTTP_ERROR")
    body = {"status": error.status_code, "reason": reason, "message": error.detail, "violations": []}
    return json_response({"error": body}, error.status_code, error.headers)


def _number(request: Request, name: str) -> int:
    """A query parameter that counts; absent: 0."""
    text = request.query_params.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequest([FieldViolation(name, "is no whole number from 0 on")])
    return int(text)


def _place(token: str) -> bytes:
    place = hex_bytes(token, "page_token")
    if len(place) not in (0, 8) or place[:1] > b"\x7f":
        raise InvalidRequest([FieldViolation("page_token", "is not from this server")])
    return place
