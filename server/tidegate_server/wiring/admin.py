"""The HTTP side's listener: bound before anything is served, and open until the calls are drained."""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import uvicorn

from tidegate_server.admin import AdminApp, AdminVerbs
from tidegate_server.config import Address, Configuration, ConfigurationSource, Tls
from tidegate_server.metrics import Exposition, Rates, Sources
from tidegate_server.ports import Clock
from tidegate_server.usecases.outlook import Outlook
from tidegate_server.wiring.application import Application
from tidegate_server.wiring.listeners import CannotListen, refuse_taken_socket

log = logging.getLogger("tidegate.admin")

MAX_CONNECTIONS = 512
"""Open connections, streams included; above that a request is answered 503."""

MAX_WORKERS = 256
"""With several workers each takes the first free port from `admin.listen` on, so that each can be scraped."""

CLOSE_WITHIN = 2
"""Seconds that answers in work get at the end; streams are ended before."""


async def open_admin(
    application: Application, source: ConfigurationSource, clock: Clock, stack: AsyncExitStack, *, is_worker: bool
) -> Address | None:
    """Serve the HTTP side until the stack is left; return where, None where it is not served (see `bind`).

    Raises CannotListen. `is_worker`: the process is one of several under this configuration.
    """
    configuration = source.configuration
    bound = bind(configuration, places=MAX_WORKERS if is_worker else 1)
    if bound is None:
        return None
    rates = Rates(application.measures, clock)
    verbs = admin_verbs(application, rates, lambda: source.generation, clock)
    address = configuration.admin.listen
    app = AdminApp(verbs, lambda: application.guard.identify, is_local=address.is_loopback)
    await stack.enter_async_context(serving(app, bound, None if address.is_loopback else configuration.tls))
    sampling = asyncio.create_task(rates.run())
    stack.callback(sampling.cancel)
    served = address if address.path else address._replace(port=bound.getsockname()[1])
    log.info("metrics and the page on %s", served)
    return served


def admin_verbs(application: Application, rates: Rates, generation: Callable[[], int], clock: Clock) -> AdminVerbs:
    """What the paths read."""
    status = application.operator_verbs.status
    sources = Sources(
        application.policies,
        application.facts,
        application.feeds,
        application.cold_wait,
        application.log,
        application.guard,
        status,
        generation,
    )
    return AdminVerbs(
        application.policies,
        application.admission_verbs.capacity,
        Outlook(application.policies, application.facts, clock),
        application.admission_verbs.catalog,
        status,
        application.flow_verbs.store,
        application.flow_verbs.watch_flows,
        lambda: application.selection_verbs,
        application.decisions,
        rates,
        Exposition(application.measures, sources, clock),
        application.health.is_ready,
    )


def bind(configuration: Configuration, *, places: int = 1) -> socket.socket | None:
    """The listening socket, on the first free one of so many ports from the configured one on.

    None, and a warning, where the default address is taken and nobody asked for it. Raises CannotListen when the
    configured one cannot be had.
    """
    address = configuration.admin.listen
    try:
        return _first_free(address, places)
    except OSError as error:
        if "admin" in configuration.model_fields_set:
            raise CannotListen(f"admin.listen: {address}: cannot listen there ({error.strerror})") from error
        log.warning("%s is taken, so there are no metrics and no page; admin.listen names another address", address)
        return None


def _first_free(address: Address, places: int) -> socket.socket:
    for place in range(places if address.port else 1):
        try:
            return _bound(address._replace(port=min(address.port + place, 65_535)))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or place == places - 1:
                raise
    raise AssertionError("unreachable")


def _bound(address: Address) -> socket.socket:
    if address.path:
        refuse_taken_socket(Path(address.path))
        Path(address.path).unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX)
        place: str | tuple[str, int] = address.path
    else:
        bound = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place = (address.host, address.port)
    try:
        bound.bind(place)
        bound.listen(128)
    except OSError:
        bound.close()
        raise
    bound.setblocking(False)
    return bound


@contextlib.asynccontextmanager
async def serving(app: AdminApp, bound: socket.socket, tls: Tls | None) -> AsyncIterator[None]:
    """Serve on the socket; at the end close the streams first, then the rest. `tls`: speak HTTPS with it."""
    config = uvicorn.Config(
        app.asgi,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=CLOSE_WITHIN,
        ws="none",
    )
    config.load()
    if tls is not None:
        config.ssl = _context(tls)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        yield
    finally:
        app.close()
        server.should_exit = True
        await task
        bound.close()


class _Server(uvicorn.Server):
    """One that leaves the process's signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _context(tls: Tls) -> ssl.SSLContext:
    """HTTPS with the certificate of the gRPC side, read again for a connection when a file has changed."""
    read = _stamps(tls)
    current = _loaded(tls)

    def follow(connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
        nonlocal read, current
        now = _stamps(tls)
        if now != read:
            try:
                read, current = now, _loaded(tls)
            except (OSError, ssl.SSLError) as fault:
                log.warning("a certificate file is not usable, the last good ones stay: %s", type(fault).__name__)
        connection.context = current

    listener = _loaded(tls)
    listener.sni_callback = follow
    return listener


def _loaded(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls.certificate, tls.key)
    return context


def _stamps(tls: Tls) -> tuple[tuple[int, int], ...]:
    with contextlib.suppress(OSError):
        return tuple((s.st_mtime_ns, s.st_ino) for s in (path.stat() for path in (tls.certificate, tls.key)))
    return ()
