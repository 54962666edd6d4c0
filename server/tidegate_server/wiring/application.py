"""The use cases and their servicers, composed from a configuration and opened stores."""

import itertools
import secrets
from collections.abc import Callable, Mapping
from typing import NamedTuple

import grpc
from grpc_reflection.v1alpha import reflection

from tidegate_server.config import ConfigurationSource
from tidegate_server.core.pins import PinCodec
from tidegate_server.ports import Clock, FactStore, PinStore
from tidegate_server.rpc import admission, health, operator
from tidegate_server.rpc.feed_stream import FeedStreams
from tidegate_server.rpc.guard import Guard
from tidegate_server.usecases.admit import Admit
from tidegate_server.usecases.capacity import Capacity
from tidegate_server.usecases.catalog import Catalog
from tidegate_server.usecases.changes import Changes
from tidegate_server.usecases.clear_blockers import ClearBlockers
from tidegate_server.usecases.cold_wait import ColdWait
from tidegate_server.usecases.feeds import Feeds
from tidegate_server.usecases.pin import EstablishPin, LookUpPin
from tidegate_server.usecases.pins_operator import ListPins, RetirePins, VerifyPins
from tidegate_server.usecases.policies import Policies
from tidegate_server.usecases.report import Report
from tidegate_server.usecases.status import FEATURES, Dependency, Status


class Stores(NamedTuple):
    """The opened stores of one mode."""

    pins: PinStore
    facts: FactStore


class Application:
    """All parts of one server process, without its listeners."""

    def __init__(self, source: ConfigurationSource, stores: Stores, pin_key: bytes, guard: Guard, clock: Clock) -> None:
        limits = source.configuration.limits
        self._source = source
        self._stores = stores
        self.guard = guard
        self.policies = Policies(source.policy)
        self.health = health.Health(clock)
        changes = Changes()
        stores.facts.subscribe(changes.tell)
        self.feeds = Feeds(changes, limits.max_feeds)
        self.cold_wait = ColdWait(changes, self.feeds, clock, max_waiters=limits.max_cold_waiters)
        pin_ids = PinCodec(pin_key).pin_id
        admit = Admit(self.policies, stores.facts, stores.pins, pin_ids, self.cold_wait, clock, decision_ids())
        report = Report(self.policies, stores.facts, clock)
        self.admission = admission.AdmissionServicer(
            admission.Verbs(
                admit,
                LookUpPin(self.policies, stores.pins, pin_ids),
                EstablishPin(admit),
                Capacity(self.policies, stores.facts, self.feeds, clock),
                Catalog(self.policies, FEATURES),
                report,
                FeedStreams(self.feeds, report, clock),
            ),
            clock,
            admission.no_flows,
            limits.default_deadline,
        )
        self.operator = operator.OperatorServicer(
            operator.OperatorVerbs(
                ListPins(stores.pins),
                RetirePins(stores.pins, clock),
                VerifyPins(stores.pins),
                ClearBlockers(self.policies, stores.facts),
                Status(
                    self.policies,
                    self.feeds,
                    {
                        "pins": Dependency(stores.pins.healthy, stores.pins.warnings),
                        "facts": Dependency(stores.facts.healthy),
                    },
                    lambda: source.error,
                    self.health.is_ready,
                ),
            )
        )

    def add_to(self, server: grpc.aio.Server) -> Mapping[str, Callable[[], bool]]:
        """Serve every service; return what each needs, by its full name."""
        health_name = health.add_to(server, self.health)
        names = {
            admission.add_to(server, self.admission): self._admission_works,
            operator.add_to(server, self.operator): lambda: True,
        }
        if self._source.configuration.reflection:
            reflection.enable_server_reflection((*names, health_name, reflection.SERVICE_NAME), server)
        return names

    def _admission_works(self) -> bool:
        return self._stores.pins.healthy() and self._stores.facts.healthy()

    def apply(self) -> None:
        """Make decisions under the source's policy from now on."""
        self.policies.current = self._source.policy
        self._stores.facts.relimit(self._source.policy.freshness)


def decision_ids() -> Callable[[], str]:
    """Ids that no other process makes: 64 random bits at the start of the process, then a count."""
    prefix = secrets.token_hex(8)
    numbers = itertools.count(1)
    return lambda: f"{prefix}{next(numbers):08x}"
