"""What stands in front of every method: who calls, whether they may, how errors leave, how many calls run at once.

One interceptor, and one wrapper per method made once: what a call pays is a few look-ups.
"""

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from tidegate_server.core.model import Caller
from tidegate_server.errors import (
    CredentialInvalid,
    FieldViolation,
    InvalidRequest,
    NotImplementedYet,
    Overloaded,
    RoleNotAllowed,
    ShuttingDown,
)
from tidegate_server.rpc.access import ACCESS, Access, is_open
from tidegate_server.rpc.open_calls import CutOff, OpenCalls, is_cancelled
from tidegate_server.rpc.status import is_expected, outcome_of, status_of
from tidegate_server.usecases.identify import CertificateName, Identify

log = logging.getLogger("tidegate.rpc")

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
MaybeHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"

NEVER_SHED = frozenset({"/tidegate.v1.FlowService/ExitHop"})
"""Calls that free something: refusing them under load would only keep the load."""

OWN_TIME = "/tidegate.v1.OperatorService/"
"""Calls that may take as long as there are pins; every other one has the server's own deadline, too."""

REQUEST_STREAMS = frozenset({"/envoy.service.ext_proc.v3.ExternalProcessor/Process"})
"""Streams that are one request each: there may be as many as calls, and they take no place of feeds and watchers."""

_CALLER: ContextVar[Caller] = ContextVar("caller")


def current_caller() -> Caller:
    """The caller of the RPC that this task serves."""
    return _CALLER.get()


class Guard(grpc.aio.ServerInterceptor):
    """Authenticates, authorizes, bounds and translates errors.

    `max_calls` unary calls and `max_streams` streams run at a time; what comes on top is refused at once. Where no
    client is asked for a certificate, none is looked for.
    """

    def __init__(
        self,
        identify: Identify,
        *,
        max_calls: int,
        max_streams: int = 1_000,
        open_calls: OpenCalls | None = None,
        asks_certificates: bool = True,
    ) -> None:
        self.open_calls = open_calls or OpenCalls()
        self.running = 0
        self.streams = 0
        self.request_streams = 0
        self.shed = 0
        self.draining = False
        self._identify = identify
        self._asks_certificates = asks_certificates
        self._max_calls = max_calls
        self._max_streams = max_streams
        self._wrapped: dict[str, Handler] = {}
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[MaybeHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MaybeHandler:
        """Answer with the wrapped handler of this method."""
        method = handler_call_details.method
        if method not in self._wrapped:
            handler = await continuation(handler_call_details)
            if handler is None or is_open(method):
                return handler
            self._wrapped[method] = self._wrap(handler, method)
        return self._wrapped[method]

    async def idle(self) -> None:
        """Return when no guarded unary call runs."""
        await self._idle.wait()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A call that runs within a stream: bounded, and waited for at the end, like a unary one.

        Raises Overloaded, ShuttingDown.
        """
        self._enter("")
        try:
            yield
        finally:
            self._leave()

    def end_streams(self) -> None:
        """End the streams that are still open, once `draining`, with a status that says why."""
        self.open_calls.end_streams(ShuttingDown())

    @property
    def identify(self) -> Identify:
        """The credentials in force."""
        return self._identify

    def use(self, identify: Identify) -> None:
        """Credentials have been read again. A stream lives on unless whoever opened it is nobody now."""
        self._identify = identify
        self.open_calls.end_streams(CredentialInvalid(), lambda caller: not identify.knows(caller))

    def _wrap(self, handler: Handler, method: str) -> Handler:
        access = ACCESS.get(method, Access((), identity_always=True))
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(handler.unary_unary, method, access),
                reading(handler.request_deserializer),
                handler.response_serializer,
            )
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(handler.unary_stream, method, access),
                reading(handler.request_deserializer),
                handler.response_serializer,
            )
        assert handler.stream_stream is not None
        return grpc.stream_stream_rpc_method_handler(
            self._stream(handler.stream_stream, method, access),
            reading(handler.request_deserializer),
            handler.response_serializer,
        )

    def _unary(self, behavior: Any, method: str, access: Access) -> Any:
        has_own_time = method.startswith(OWN_TIME)

        async def guarded(request: Any, context: Context) -> Any:
            task = self.open_calls.begin()
            is_running = False
            try:
                self._enter(method)
                is_running = True
                if has_own_time:
                    self.open_calls.unlimited()
                _CALLER.set(self._caller(context, access))
                if request is UNREADABLE:
                    raise unreadable()
                return await behavior(request, context)
            except Exception as error:  # noqa: BLE001 - translated, not swallowed
                await refuse(error, method, context)
            except asyncio.CancelledError as cancelled:
                await self._refuse_cancelled(cancelled, method, context)
            finally:
                self.open_calls.end(task)
                if is_running:
                    self._leave()

        return guarded

    def _stream(self, behavior: Any, method: str, access: Access) -> Any:
        async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
            self.open_calls.begin().add_done_callback(self.open_calls.end)
            self._count_stream(method, 1)
            try:
                if self.draining:
                    raise ShuttingDown
                if self._has_no_place(method):
                    self.shed += 1
                    raise Overloaded("streams")
                caller = self._caller(context, access)
                _CALLER.set(caller)
                self.open_calls.unlimited(caller)
                async for response in behavior(_readable(request), context):
                    yield response
            except Exception as error:  # noqa: BLE001 - translated, not swallowed
                await refuse(error, method, context)
            except asyncio.CancelledError as cancelled:
                await self._refuse_cancelled(cancelled, method, context)
            finally:
                self._count_stream(method, -1)

        return guarded

    async def _refuse_cancelled(self, cancelled: asyncio.CancelledError, method: str, context: Context) -> None:
        """Tell the caller, if it is still there, why its work was cancelled: gRPC itself would leave it waiting."""
        reason = self.open_calls.why_ended()
        if reason is None and is_cancelled():  # by gRPC: the caller is gone
            raise cancelled
        await refuse(reason or CutOff(), method, context)

    def _count_stream(self, method: str, change: int) -> None:
        if method in REQUEST_STREAMS:
            self.request_streams += change
        else:
            self.streams += change

    def _has_no_place(self, method: str) -> bool:
        if method in REQUEST_STREAMS:
            return self.request_streams > self._max_calls
        return self.streams > self._max_streams

    def _enter(self, method: str) -> None:
        if self.draining and method not in NEVER_SHED:
            raise ShuttingDown
        if self.running >= self._max_calls and method not in NEVER_SHED:
            self.shed += 1
            raise Overloaded
        self.running += 1
        self._idle.clear()

    def _leave(self) -> None:
        self.running -= 1
        if self.running == 0:
            self._idle.set()

    def _caller(self, context: Context, access: Access) -> Caller:
        caller = self._identify(
            _authorization(context),
            _certificate_names(context) if self._asks_certificates else (),
            identity_needed=access.identity_always,
        )
        if caller.roles.isdisjoint(access.roles):
            raise RoleNotAllowed(access.roles)
        return caller


UNREADABLE = object()
"""In place of a request whose bytes are no message: gRPC itself would answer UNKNOWN, with a text of the library."""


def reading(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """The same deserializer, with UNREADABLE for what it cannot read."""
    if deserialize is None:
        return None

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return UNREADABLE

    return read


def unreadable() -> InvalidRequest:
    """What is told of such a request."""
    return InvalidRequest([FieldViolation("request", "its bytes are no message of this method; text must be UTF-8")])


def _readable(request: Any) -> Any:
    """A request, or a stream of them, that raises InvalidRequest where the bytes are no message."""
    if request is UNREADABLE:
        raise unreadable()
    return _all_readable(request) if isinstance(request, AsyncIterable) else request


async def _all_readable(requests: AsyncIterable[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        if request is UNREADABLE:
            raise unreadable()
        yield request


async def refuse(error: Exception, method: str, context: Context) -> None:
    """End the call with the status of `error`; always raises."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, NotImplementedError):
        error = NotImplementedYet()
    if not is_expected(error):
        log.error("%s failed", method, exc_info=error)
    await context.abort_with_status(status_of(outcome_of(error)))


def _authorization(context: Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            return value if isinstance(value, str) else ""
    return ""


def _certificate_names(context: Context) -> Sequence[CertificateName]:
    """What a client certificate says of its owner, the most specific first: SPIFFE id, DNS names, common name."""
    auth = context.auth_context()
    if not auth:
        return ()
    ids = [uri for uri in auth.get("peer_uri", ()) if uri.startswith(b"spiffe://")]
    names = [CertificateName("spiffe", _text(ids[0]))] if len(ids) == 1 else []  # with two it is no SPIFFE certificate
    names += [CertificateName("dns", _text(name).lower()) for name in auth.get("peer_dns", ())]
    names += [CertificateName("cn", _text(name)) for name in auth.get("x509_common_name", ())]
    return names


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
