"""Start, run, reload, drain, stop."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TypeAlias

import grpc

from tidegate_server.config import Address, ConfigurationSource
from tidegate_server.core.model import SECOND, Nanos
from tidegate_server.errors import UnsafeState
from tidegate_server.ports import Clock
from tidegate_server.rpc import health
from tidegate_server.rpc.guard import Guard
from tidegate_server.rpc.open_calls import OpenCalls
from tidegate_server.stores.guarded_flows import GuardedFlowStore
from tidegate_server.stores.memory_facts import MemoryFactStore
from tidegate_server.stores.sqlite_agents import SqliteAgentStore
from tidegate_server.stores.sqlite_decisions import SqliteDecisionStore
from tidegate_server.stores.sqlite_flows import SqliteFlowStore
from tidegate_server.stores.sqlite_pins import SqlitePinStore
from tidegate_server.usecases.deadlines import within
from tidegate_server.wiring.admin import open_admin
from tidegate_server.wiring.application import Application, Secrets, Stores
from tidegate_server.wiring.clock import SystemClock
from tidegate_server.wiring.credentials import Certificates, identify
from tidegate_server.wiring.listeners import listen, server_options
from tidegate_server.wiring.state import State, open_state, tracestate_keys
from tidegate_server.wiring.tracing import open_tracing

log = logging.getLogger("tidegate")

RELOAD_EVERY: Nanos = SECOND
"""How soon a changed configuration file is seen."""

LAST_WORDS = 0.2
"""Seconds for what was said or asked last to get across: a health Watch's NOT_SERVING, a call on its way here."""

STREAMS_BESIDES_FEEDS = 256
"""Streams that are no accepted feed: those that watch flows (bounded by themselves), and what has said no hello yet."""


TakeOver: TypeAlias = Callable[[], Awaitable[None]]
"""Returns when all workers take a new configuration over."""


async def serve(
    source: ConfigurationSource,
    *,
    clock: Clock | None = None,
    started: Callable[[Sequence[Address]], None] = print,
    worker: TakeOver | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. `started` is told the addresses, with the ports that were given.

    `worker` is given in one of several processes that share the port and a supervisor. Raises UnsafeState,
    CannotListen: then nothing was served.
    """
    async with AsyncExitStack() as stack:
        running = await start(source, clock or SystemClock(), stack, worker=worker)
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, running.reload_soon)
        started(running.addresses)
        await stop.wait()
        log.info("draining")


class Running:
    """A started server."""

    def __init__(
        self,
        source: ConfigurationSource,
        state: State,
        application: Application,
        clock: Clock,
        take_over: TakeOver | None = None,
    ) -> None:
        self._take_over = take_over
        self.source = source
        self.application = application
        self.addresses: list[Address] = []
        self.admin: Address | None = None
        self._state = state
        self._tracestate = state.tracestate_keys
        self._clock = clock
        self._asked = asyncio.Event()

    def reload_soon(self) -> None:
        """Reload without waiting for a change of the file to be seen: SIGHUP."""
        self._asked.set()

    async def reload(self) -> None:
        """Take a changed file over whole, or keep the last good one."""
        if not self.source.reload():
            log.error("the configuration was not taken over, the last good one serves:\n%s", self.source.error)
            return
        if self._take_over is not None:
            await self._take_over()
        self._read_keys()
        await self.application.apply(self._tracestate)
        self.application.guard.use(identify(self.source.configuration, self._state.local_token))
        log.info("configuration revision %s", self.source.revision)

    def _read_keys(self) -> None:
        """Rotated keys count from now on; files that cannot be read leave the last good ones in force."""
        try:
            self._tracestate = tracestate_keys(self.source.configuration, self._state.directory)
        except UnsafeState as unsafe:
            log.error("keys.tracestate was not taken over, the last good keys serve: %s", unsafe)

    async def follow(self) -> None:
        """Reload whenever the file has changed or somebody asks for it, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                await within(self._clock, RELOAD_EVERY, self._asked.wait())
            if self._asked.is_set() or self.source.changed():
                self._asked.clear()
                await self.reload()


async def start(
    source: ConfigurationSource, clock: Clock, stack: AsyncExitStack, *, worker: TakeOver | None = None
) -> Running:
    """Open the stores, listen and serve; `stack` undoes all of it in order, draining first."""
    configuration = source.configuration
    state = open_state(configuration, lock=worker is None)
    stack.callback(state.directory.close)
    stores = await _open_stores(source, state, clock, stack)
    limits = configuration.limits
    guard = Guard(
        identify(configuration, state.local_token),
        max_calls=limits.max_concurrent_calls,
        max_streams=2 * limits.max_feeds + STREAMS_BESIDES_FEEDS,
        open_calls=OpenCalls(clock, limits.default_deadline),
        asks_certificates=configuration.tls is not None and configuration.tls.client_ca is not None,
    )
    keys = Secrets(state.pin_key, state.tracestate_keys)
    certificates = Certificates(configuration.tls) if configuration.tls is not None else None
    application = Application(source, stores, keys, guard, clock, certificates.warnings if certificates else tuple)
    running = Running(source, state, application, clock, worker)
    application.log.start()
    stack.push_async_callback(application.close)

    options = server_options(configuration, shares_port=worker is not None)
    server = grpc.aio.server(interceptors=[guard, *open_tracing(os.environ, stack)], options=options)
    needs = application.add_to(server)
    running.addresses = listen(server, configuration.listen, certificates)
    application.health.start(needs)
    if configuration.health is not None:  # before the drain in the stack, so that it says NOT_SERVING to the end
        await _serve_health_alone(configuration.health.listen, application, stack, options)
    running.admin = await open_admin(application, source, clock, stack, is_worker=worker is not None)
    stack.push_async_callback(_drain, server, application, configuration.drain_grace)
    await server.start()
    for task in (application.health.watch(), application.tend(), guard.open_calls.tend(), running.follow()):
        stack.push_async_callback(_cancel, asyncio.create_task(task))
    application.health.refresh()
    return running


async def _open_stores(source: ConfigurationSource, state: State, clock: Clock, stack: AsyncExitStack) -> Stores:
    """The stores of the mode that the configuration asks for."""
    if not source.configuration.is_shared:
        return await _open_embedded(state, clock, stack)
    try:
        from tidegate_server.wiring.shared import open_shared  # noqa: PLC0415 - its drivers come with extras
    except ImportError as error:
        raise UnsafeState(f"the shared mode needs the extras postgres and valkey ({error.name} is missing)") from error
    return await open_shared(source.configuration, source.policy.freshness, state.pin_key, clock, stack)


async def _open_embedded(state: State, clock: Clock, stack: AsyncExitStack) -> Stores:
    """The stores of one process on one machine (§12)."""
    pins = await SqlitePinStore.open(state.directory, state.pin_key)
    stack.push_async_callback(pins.close)
    agents = SqliteAgentStore.open(state.directory.path)
    stack.push_async_callback(agents.close)
    decisions = SqliteDecisionStore.open(state.directory.path)
    stack.push_async_callback(decisions.close)
    flows = await SqliteFlowStore.open(state.directory.path, clock)
    stack.push_async_callback(flows.close)
    return Stores(pins, MemoryFactStore(clock), GuardedFlowStore(flows, clock), agents, decisions)


async def _serve_health_alone(
    address: Address, application: Application, stack: AsyncExitStack, options: list[tuple[str, int]]
) -> None:
    """A plaintext port for probes that know no TLS; nothing else is served there."""
    server = grpc.aio.server(options=options)
    health.add_to(server, application.health)
    listen(server, [address], None)
    await server.start()
    stack.push_async_callback(server.stop, LAST_WORDS)


async def _drain(server: grpc.aio.Server, application: Application, grace: Nanos) -> None:
    """NOT_SERVING first; then every new call is sent elsewhere, what runs finishes, the streams are closed.

    gRPC itself stops last: it would answer the calls that wait in its queue CANCELLED, which nobody retries.
    """
    guard = application.guard
    application.health.drain()
    guard.draining = True
    application.feeds.drain()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace / SECOND):
            await _quiet(guard.open_calls)
            await guard.idle()
    guard.end_streams()
    await server.stop(LAST_WORDS)


async def _quiet(calls: OpenCalls) -> None:
    """Return when no call has come for LAST_WORDS: then gRPC's queue is empty, and callers have gone elsewhere."""
    seen = -1
    while seen != calls.begun:
        seen = calls.begun
        await asyncio.sleep(LAST_WORDS)


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
