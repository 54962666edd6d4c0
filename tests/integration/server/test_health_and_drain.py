"""grpc.health.v1, reflection and the graceful end (§11 of the contract)."""

import asyncio
import socket
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import admission_pb2_grpc as rpc
from tidegate.v1 import flow_pb2, flow_pb2_grpc, types_pb2
from tidegate_server.config import ConfigurationSource
from tidegate_server.core.model import SECOND
from tidegate_server.rpc import health as health_rpc
from tidegate_server.stores.guarded_flows import GuardedFlowStore
from tidegate_server.stores.memory_facts import MemoryFactStore
from tidegate_server.stores.sqlite_agents import SqliteAgentStore
from tidegate_server.stores.sqlite_pins import SqlitePinStore
from tidegate_server.testing import FakeClock
from tidegate_server.wiring.run import start

from tests.integration.server.harness import CONFIG, Failure, Served, failure, serving, until, write

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

LIST = health_pb2.HealthListRequest()  # type: ignore[attr-defined] # the types are of an older release

SERVICES = [f"tidegate.v1.{name}Service" for name in ("Admission", "Flow", "Selection", "Operator")]
ENVOY = ["envoy.service.auth.v3.Authorization", "envoy.service.ext_proc.v3.ExternalProcessor"]
NAMES = ["", "liveness", "readiness", *SERVICES, *ENVOY]


def watch(server: Served, service: str) -> Any:
    """An open Watch."""
    return server.health.Watch(health_pb2.HealthCheckRequest(service=service))


async def seen(call: Any) -> int:
    """The next status of a Watch."""
    answer = await asyncio.wait_for(call.read(), 10)
    assert answer is not grpc.aio.EOF
    return int(answer.status)


@pytest.mark.parametrize("service", NAMES)
async def test_every_name_is_serving_once_the_server_works(tmp_path: Path, service: str) -> None:
    async with serving(tmp_path) as server:
        assert await server.serving(service) == SERVING


async def test_list_names_them_all(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        statuses = (await server.health.List(LIST)).statuses
        assert {name: answer.status for name, answer in statuses.items()} == dict.fromkeys(NAMES, SERVING)


async def test_everything_starts_not_serving() -> None:
    own = health_rpc.Health(FakeClock())
    server = grpc.aio.server()
    health_rpc.add_to(server, own)
    port = server.add_insecure_port("127.0.0.1:0")
    works = {"a.Service": True, "b.Service": False}
    own.start({name: lambda name=name: works[name] for name in works})  # type: ignore[misc]
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)

        async def statuses() -> dict[str, int]:
            found = (await stub.List(LIST)).statuses
            return {name: answer.status for name, answer in found.items()}

        assert set((await statuses()).values()) == {NOT_SERVING}
        own.refresh()
        assert {name for name, status in (await statuses()).items() if status == SERVING} == {"a.Service", "liveness"}
        works["b.Service"] = True
        own.refresh()
        assert set((await statuses()).values()) == {SERVING}
    await server.stop(None)


async def test_a_watcher_that_does_not_read_holds_nobody_up_and_gets_the_last_status() -> None:
    servicer = health_rpc.HealthServicer()
    servicer.show("s", True)
    request: Any = health_pb2.HealthCheckRequest(service="s")
    lazy, eager = (aiter(servicer.Watch(request, None)) for _ in range(2))  # type: ignore[arg-type] # no context needed
    assert (await anext(lazy)).status == (await anext(eager)).status == SERVING
    for works in (False, True, False):
        servicer.show("s", works)
        assert (await anext(eager)).status == (SERVING if works else NOT_SERVING)
    assert (await anext(lazy)).status == NOT_SERVING
    await lazy.aclose()  # type: ignore[attr-defined]
    await eager.aclose()  # type: ignore[attr-defined]
    assert servicer._watchers == set()


async def test_an_unknown_service_is_not_found_and_its_watch_stays_open(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        request = health_pb2.HealthCheckRequest(service="tidegate.v1.NoService")
        assert (await failure(server.health.Check(request))).code == "NOT_FOUND"
        call = watch(server, "tidegate.v1.NoService")
        assert await seen(call) == SERVICE_UNKNOWN
        assert not call.done()
        server.application.health.servicer.show("tidegate.v1.NoService", True)
        assert await seen(call) == SERVING
        call.cancel()


STORES: dict[str, tuple[type, str]] = {
    "pins": (SqlitePinStore, "tidegate.v1.AdmissionService"),
    "facts": (MemoryFactStore, "tidegate.v1.AdmissionService"),
    "flows": (GuardedFlowStore, "tidegate.v1.FlowService"),
    "agents": (SqliteAgentStore, "tidegate.v1.SelectionService"),
}


@pytest.mark.parametrize("store", STORES)
async def test_a_store_that_fails_takes_its_own_service_down_and_heals_without_a_restart(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = STORES[store][1]
    works = True
    for name, (kind, _) in STORES.items():
        monkeypatch.setattr(kind, "healthy", lambda _, name=name: works or name != store)
    async with serving(tmp_path) as server:
        call = watch(server, service)
        assert await seen(call) == SERVING
        works = False
        await server.fake.advance(health_rpc.CHECK_EVERY)
        assert await seen(call) == NOT_SERVING
        others = [name for name in SERVICES if name != service]
        assert [await server.serving(name) for name in others] == [SERVING] * 3
        assert [await server.serving(name) for name in ("readiness", "")] == [NOT_SERVING] * 2
        assert await server.serving("liveness") == SERVING
        status = await server.status()
        assert not status.ready
        assert {name for name, state in status.dependencies.items() if state != "ok"} == {store}
        works = True
        await server.fake.advance(health_rpc.CHECK_EVERY)
        assert await seen(call) == SERVING
        assert (await server.status()).ready
        call.cancel()


async def test_health_needs_no_identity_and_is_never_shed(tmp_path: Path) -> None:
    async with serving(tmp_path, limits={"maxConcurrentCalls": 1}) as server, server.collector():
        await server.fake.advance(3 * SECOND)
        waiting = asyncio.ensure_future(server.admit())
        await until(lambda: server.waiting == 1)
        shed = await failure(server.admission.Admit(wire.AdmitRequest(model="managed/local")))
        assert (shed.code, shed.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert shed.retry_delay is not None
        assert await server.serving(SERVICES[0]) == SERVING
        waiting.cancel()
        await until(lambda: server.application.guard.running == 0)


@pytest.mark.parametrize("on", [True, False])
async def test_reflection_lists_the_services_by_a_setting(tmp_path: Path, on: bool) -> None:
    async with serving(tmp_path, reflection=on) as server:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(server.channel)  # type: ignore[arg-type]
        call = stub.ServerReflectionInfo()
        if not on:  # the refusal comes of the headers alone: a write would race with it
            assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
            return
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = {service.name for service in (await call.read()).list_services_response.service}
        assert listed == {*SERVICES, *ENVOY, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        for service in (*SERVICES, *ENVOY):
            await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=service))
            assert (await call.read()).file_descriptor_response.file_descriptor_proto
        call.cancel()


async def test_draining_says_not_serving_first_closes_streams_and_finishes_what_runs(tmp_path: Path) -> None:
    source = ConfigurationSource(write(tmp_path, CONFIG), {})
    clock = FakeClock()
    async with AsyncExitStack() as after, AsyncExitStack() as stack:
        running = await start(source, clock, stack)
        channel = await after.enter_async_context(grpc.aio.insecure_channel(str(running.addresses[0])))
        server = Served(running, clock, channel, tmp_path)
        stop = running.application.guard
        collector = server.collector("c", "qwen")
        await collector.connect()
        await clock.advance(3 * SECOND)
        watching = watch(server, "tidegate.v1.AdmissionService")
        assert await seen(watching) == SERVING
        flows = flow_pb2_grpc.FlowServiceStub(channel).WatchFlows(flow_pb2.WatchFlowsRequest())
        flows_end = asyncio.ensure_future(flows.read())
        await until(lambda: stop.streams == 2)

        slow = asyncio.ensure_future(server.admit())
        await collector.asked()
        order: list[str] = []
        loop = asyncio.get_running_loop()
        began = loop.time()
        draining = asyncio.ensure_future(stack.aclose())

        assert await seen(watching) == NOT_SERVING
        order.append("watch")
        end = await collector.end()
        order.append("feed")
        assert end is not None
        assert (end.code, end.reason) == ("UNAVAILABLE", "SHUTTING_DOWN")
        assert end.retry_delay is not None
        answer = await slow  # its collector is gone: refused by policy, not cut off
        assert answer.refusal.reason == types_pb2.REFUSAL_REASON_CAPACITY_UNKNOWN
        assert stop.draining
        assert [f.reason for f in [await failure(flows_end)]] == ["SHUTTING_DOWN"]
        await draining
        assert loop.time() - began < 5  # the grace is 15 s
        assert order == ["watch", "feed"]


async def test_calls_that_come_during_the_drain_are_retryable(tmp_path: Path) -> None:
    source = ConfigurationSource(write(tmp_path, CONFIG), {})
    async with AsyncExitStack() as stack:
        running = await start(source, FakeClock(), stack)
        async with grpc.aio.insecure_channel(str(running.addresses[0])) as channel:
            stub: rpc.AdmissionServiceAsyncStub = rpc.AdmissionServiceStub(channel)
            await stub.Catalog(wire.CatalogRequest())
            requests = [
                wire.AdmitRequest(model="managed/local", worker_id=f"w{i}", request_bytes=1) for i in range(500)
            ]
            calls = [asyncio.ensure_future(_end(stub.Admit(request))) for request in requests]
            await asyncio.sleep(0)
            draining = asyncio.ensure_future(stack.aclose())
            ends = Counter(await asyncio.gather(*calls))
            assert set(ends) <= {"UNAVAILABLE", "OK"}, ends
            assert await _end(stub.Catalog(wire.CatalogRequest())) == "UNAVAILABLE"
            await draining


async def _end(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return Failure(error).code
    return "OK"


async def test_the_plaintext_health_port_says_not_serving_before_it_goes(tmp_path: Path) -> None:
    source = ConfigurationSource(write(tmp_path, CONFIG, health={"listen": f"127.0.0.1:{free_port()}"}), {})
    async with AsyncExitStack() as stack:
        await start(source, FakeClock(), stack)
        assert source.configuration.health is not None
        async with grpc.aio.insecure_channel(str(source.configuration.health.listen)) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            for name in NAMES:
                assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == SERVING
            admission: rpc.AdmissionServiceAsyncStub = rpc.AdmissionServiceStub(channel)
            assert (await failure(admission.Catalog(wire.CatalogRequest()))).code == "UNIMPLEMENTED"
            watching = stub.Watch(health_pb2.HealthCheckRequest())
            assert await seen(watching) == SERVING
            draining = asyncio.ensure_future(stack.aclose())
            assert await seen(watching) == NOT_SERVING
            await draining


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
