"""The functions in Valkey answer as the guard that was written a second time: every limit, sum and chain."""

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tidegate_server.ports import FlowStore
from tidegate_server.stores.flow_time import FlowTime
from tidegate_server.stores.valkey.flows import FLOWS
from tidegate_server.stores.valkey.link import Link
from tidegate_server.wiring.clock import SystemClock

from tests.property.test_flow_model import FlowMachine
from tests.support import servers
from tests.support.shared_stores import PATIENT, OwningFlows


class ValkeyMachine(FlowMachine):
    """The machine of all flow stores, on a real server that was emptied."""

    async def open(self) -> FlowStore:
        server = servers.valkey()
        with server.client() as client:
            client.flushall()
        link = Link(server.url(), [FLOWS], SystemClock(), answer_seconds=PATIENT)
        await link.open()
        return OwningFlows(link, server.url(), SystemClock(), now=FlowTime(self.clock).now)


def test_valkey_answers_as_the_naive_guard_does() -> None:
    run_state_machine_as_test(
        ValkeyMachine,
        settings=settings(
            max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
