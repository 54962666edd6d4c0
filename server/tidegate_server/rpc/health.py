"""grpc.health.v1: a service is SERVING only while what it needs works (§11 of the contract)."""

from collections.abc import Callable, Mapping

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tidegate_server.core.model import SECOND, Nanos
from tidegate_server.ports import Clock

LIVENESS, READINESS, WHOLE = "liveness", "readiness", ""
CHECK_EVERY: Nanos = SECOND // 4
"""How soon a change of a dependency shows."""

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING

Needs = Mapping[str, Callable[[], bool]]
"""Per service, by its full name: whether all that it needs works now."""


class Health:
    """Sets the status of each service from what it needs. Everything starts NOT_SERVING."""

    def __init__(self, clock: Clock) -> None:
        self.servicer = health.aio.HealthServicer()
        self._clock = clock
        self._needs: dict[str, Callable[[], bool]] = {}
        self._shown: dict[str, bool] = {}
        self._draining = False

    async def start(self, needs: Needs) -> None:
        """Know the services, and show that none of them serves yet."""
        self._needs = {**needs, LIVENESS: lambda: True, READINESS: self.is_ready, WHOLE: self.is_ready}
        for service in self._needs:
            await self._show(service, False)

    def is_ready(self) -> bool:
        """Whether every service has what it needs."""
        special = (LIVENESS, READINESS, WHOLE)
        return not self._draining and all(works() for name, works in self._needs.items() if name not in special)

    async def refresh(self) -> None:
        """Show what has changed."""
        if self._draining:
            return
        for service, works in self._needs.items():
            if works() != self._shown[service]:
                await self._show(service, not self._shown[service])

    async def watch(self) -> None:
        """Keep the statuses true, until cancelled."""
        while True:
            await self.refresh()
            await self._clock.sleep(CHECK_EVERY)

    async def drain(self) -> None:
        """NOT_SERVING for good, before anything else stops."""
        self._draining = True
        await self.servicer.enter_graceful_shutdown()

    async def _show(self, service: str, works: bool) -> None:
        self._shown[service] = works
        await self.servicer.set(service, SERVING if works else NOT_SERVING)


def add_to(server: grpc.aio.Server, own: Health) -> str:
    """Serve it; return the service's full name."""
    health_pb2_grpc.add_HealthServicer_to_server(own.servicer, server)
    return health.SERVICE_NAME
