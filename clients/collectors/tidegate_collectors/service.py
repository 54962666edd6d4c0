"""Composition: one process, many collectors, one connection to the server."""

import asyncio
import contextlib
import json
import random
import signal
import socket
from collections.abc import Callable

from tidegate import AsyncClient, TokenFile

from tidegate_collectors.clock import Clock, SystemClock
from tidegate_collectors.config import Config, Entry
from tidegate_collectors.endpoint import Answer, Endpoint, Request
from tidegate_collectors.generic.evaluate import GenericParser
from tidegate_collectors.generic.reader import MappingReader
from tidegate_collectors.meters import Meters
from tidegate_collectors.observer import PATH, Observed, Observer, handler
from tidegate_collectors.poll import Fetcher
from tidegate_collectors.poller import Poller
from tidegate_collectors.presets import Via
from tidegate_collectors.readers import CommandReader, FileReader, PageReader, Reader
from tidegate_collectors.station import Station, hello


class Service:
    """All collectors of one file."""

    def __init__(
        self,
        config: Config,
        *,
        client: AsyncClient,
        clock: Clock | None = None,
        draw: Callable[[], float] = random.random,
        fetcher: Fetcher | None = None,
    ) -> None:
        self.meters = Meters()
        self.addresses: dict[str, tuple[str, int]] = {}
        """Where `listen` and `observer` are served, once they are."""
        self._config = config
        self._client = client
        self._clock = clock or SystemClock()
        self._draw = draw
        self._fetcher = fetcher or Fetcher(self._clock, draw)
        self._process = config.collector_id or socket.gethostname() or "collector"
        self._pollers: list[Poller] = []
        self._stations: list[Station] = []
        self._observed: list[Observed] = []
        for entry in config.collectors:
            self._add(entry)
        self.observer = Observer(self._observed, self._clock)

    async def run(self, ready: asyncio.Event | None = None) -> None:
        """Collect until cancelled."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._fetcher.close)
            await self._serve(stack)
            async with asyncio.TaskGroup() as tasks:
                for station in self._stations:
                    tasks.create_task(station.run())
                for poller in self._pollers:
                    tasks.create_task(poller.run())
                if ready:
                    ready.set()

    def _add(self, entry: Entry) -> None:
        reader = self._reader(entry)
        every = _interval(entry)
        station = Station(
            entry.name,
            hello(
                f"{self._process}/{entry.name}",
                entry.provider,
                entry.siblings,
                can_refresh=reader is not None,
                interval=every if reader else None,
            ),
            self._client,
            self._clock,
            self.meters,
        )
        if entry.kind and entry.kind.advisory:
            self.meters.connected(entry.name, True)  # it has no feed that could be closed
        else:
            self._stations.append(station)
        if reader is None:
            parse = entry.kind.reads_live() if entry.kind else GenericParser(entry)
            self._observed.append(Observed(source=entry.source, parse=parse, publish=station.publish))
            return
        preset = entry.kind
        self._pollers.append(
            Poller(
                reader,
                entry.source,
                station,
                self._clock,
                every=every,
                least=preset.least if preset else min(every, 1.0),
                patient=entry.via is not Via.ENGINE,
                draw=self._draw,
            )
        )

    def _reader(self, entry: Entry) -> Reader | None:
        """Return how an entry reads; None of one that is handed responses."""
        preset, via = entry.kind, entry.via
        if via is Via.OBSERVER:
            return None
        if preset is None:
            return MappingReader(entry, self._fetcher)
        if via is Via.FILES:
            return FileReader(entry, preset, self._clock)
        if via is Via.COMMAND:
            return CommandReader(entry, preset, self._clock)
        return PageReader(entry, preset, self._fetcher, self._clock)

    async def _serve(self, stack: contextlib.AsyncExitStack) -> None:
        if self._config.listen:
            routes = {("GET", "/metrics"): self._metrics, ("GET", "/healthz"): self._health}
            await self._listen(stack, "listen", Endpoint(routes), self._config.listen)
        if self._config.observer:
            token = TokenFile(self._config.observer.token_file)
            token.read()
            endpoint = Endpoint({("POST", PATH): handler(self.observer, token)})
            await self._listen(stack, "observer", endpoint, self._config.observer.listen)

    async def _listen(self, stack: contextlib.AsyncExitStack, name: str, endpoint: Endpoint, address: str) -> None:
        server = await endpoint.start(address)
        stack.callback(server.close)
        self.addresses[name] = server.sockets[0].getsockname()[:2]

    async def _metrics(self, request: Request) -> Answer:
        return Answer(200, self.meters.page(), "text/plain; version=0.0.4; charset=utf-8")

    async def _health(self, request: Request) -> Answer:
        well = self.meters.well()
        body = json.dumps({"well": well, "collectors": self.meters.summary()}).encode()
        return Answer(200 if well else 503, body)


async def collect(config: Config, *, server: str | None = None, token_file: str | None = None) -> None:
    """Run a file's collectors until SIGTERM or SIGINT."""
    async with AsyncClient(server or config.server, token_file=token_file or config.token_file) as client:
        task = asyncio.create_task(Service(config, client=client).run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _interval(entry: Entry) -> float:
    part = entry.prometheus or entry.http
    default = part.every if part else entry.kind.every if entry.kind else 60.0
    return entry.every or default
