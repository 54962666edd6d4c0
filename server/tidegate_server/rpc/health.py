"""grpc.health.v1: a service is SERVING only while what it needs works (§11 of the contract).

The servicer is our own: grpcio-health-checking's for asyncio has no List, says SERVING before anything works, and holds
a lock while it writes, so that one watcher who does not read would keep every status as it is.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tidegate_server.core.model import SECOND, Nanos
from tidegate_server.ports import Clock
from tidegate_server.rpc.guard import Context

LIVENESS, READINESS, WHOLE = "liveness", "readiness", ""
CHECK_EVERY: Nanos = SECOND // 4
"""How soon a change of a dependency shows."""

Answer = health_pb2.HealthCheckResponse
SERVING, NOT_SERVING, SERVICE_UNKNOWN = Answer.SERVING, Answer.NOT_SERVING, Answer.SERVICE_UNKNOWN

Needs = Mapping[str, Callable[[], bool]]
"""Per service, by its full name: whether all that it needs works now."""


class HealthServicer(health_pb2_grpc.HealthServicer):
    """What is shown. A watcher that reads slowly misses statuses in between, and never the last one."""

    def __init__(self) -> None:
        self._shown: dict[str, bool] = {}
        self._watchers: set[asyncio.Event] = set()

    def show(self, service: str, works: bool) -> None:
        """Show a service as SERVING or not, and tell its watchers if that is news."""
        if self._shown.get(service) is works:
            return
        self._shown[service] = works
        for changed in self._watchers:
            changed.set()

    def show_nothing_serving(self) -> None:
        """Show every known service as NOT_SERVING."""
        for service in self._shown:
            self.show(service, False)

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> Answer:
        """The status now; NOT_FOUND for a service that is not known."""
        if request.service not in self._shown:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return self._answer(request.service)

    async def List(self, request: Any, context: Context) -> Any:
        """Every service with its status now."""
        answers = {name: self._answer(name) for name in self._shown}
        return health_pb2.HealthListResponse(statuses=answers)  # type: ignore[attr-defined] # types of an older release

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> AsyncIterator[Answer]:
        """The status now and whenever it changes; a service that is not known may become so."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        told = None
        try:
            while True:
                changed.clear()
                answer = self._answer(request.service)
                if answer != told:
                    told = answer
                    yield answer
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    def _answer(self, service: str) -> Answer:
        works = self._shown.get(service)
        return Answer(status=SERVICE_UNKNOWN if works is None else SERVING if works else NOT_SERVING)


class Health:
    """Sets the status of each service from what it needs. Everything starts NOT_SERVING."""

    def __init__(self, clock: Clock) -> None:
        self.servicer = HealthServicer()
        self._clock = clock
        self._needs: dict[str, Callable[[], bool]] = {}
        self._draining = False

    def start(self, needs: Needs) -> None:
        """Know the services, and show that none of them serves yet."""
        self._needs = {**needs, LIVENESS: lambda: True, READINESS: self.is_ready, WHOLE: self.is_ready}
        for service in self._needs:
            self.servicer.show(service, False)

    def is_ready(self) -> bool:
        """Whether every service has what it needs."""
        special = (LIVENESS, READINESS, WHOLE)
        return not self._draining and all(works() for name, works in self._needs.items() if name not in special)

    def refresh(self) -> None:
        """Show what has changed."""
        if self._draining:
            return
        for service, works in self._needs.items():
            self.servicer.show(service, works())

    async def watch(self) -> None:
        """Keep the statuses true, until cancelled."""
        while True:
            self.refresh()
            await self._clock.sleep(CHECK_EVERY)

    def drain(self) -> None:
        """NOT_SERVING for good, before anything else stops."""
        self._draining = True
        self.servicer.show_nothing_serving()


def add_to(server: grpc.aio.Server, own: Health) -> str:
    """Serve it; return the service's full name."""
    health_pb2_grpc.add_HealthServicer_to_server(own.servicer, server)
    return health.SERVICE_NAME
