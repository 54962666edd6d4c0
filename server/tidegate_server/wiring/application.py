"""The use cases and their servicers, composed from a configuration and opened stores."""

import asyncio
import hashlib
import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import grpc
from grpc_reflection.v1alpha import reflection

from tidegate_server.config import ConfigurationSource
from tidegate_server.core.decision_record import session_hash
from tidegate_server.core.pins import PinCodec
from tidegate_server.metrics import (
    MeasureAdmissions,
    MeasuredAgents,
    MeasuredDecisions,
    MeasuredFacts,
    MeasuredFlows,
    MeasuredPins,
    Measures,
    MeasureSelections,
)
from tidegate_server.ports import AgentStore, Clock, DecisionStore, FactStore, FlowStore, Peers, PinStore
from tidegate_server.rpc import admission, flow, health, operator, selection
from tidegate_server.rpc.feed_stream import FeedStreams
from tidegate_server.rpc.guard import Guard
from tidegate_server.rpc.selection import SelectionVerbs
from tidegate_server.usecases.admit import Admit, PinIds
from tidegate_server.usecases.capacity import Capacity
from tidegate_server.usecases.catalog import Catalog
from tidegate_server.usecases.changes import Changes
from tidegate_server.usecases.clear_blockers import ClearBlockers
from tidegate_server.usecases.cold_wait import ColdWait
from tidegate_server.usecases.decision_log import QueuedDecisionLog
from tidegate_server.usecases.feeds import Feeds
from tidegate_server.usecases.flow_status import tend
from tidegate_server.usecases.log_admissions import LogAdmissions
from tidegate_server.usecases.pin import EstablishPin, LookUpPin
from tidegate_server.usecases.pins_operator import ListPins, RetirePins, VerifyPins
from tidegate_server.usecases.policies import Policies
from tidegate_server.usecases.report import Report
from tidegate_server.usecases.retention import Retention
from tidegate_server.usecases.shared_feeds import SharedFeeds
from tidegate_server.usecases.status import FEATURES, Dependency, Status
from tidegate_server.usecases.watch_decisions import WatchedDecisions
from tidegate_server.wiring.envoy import add_envoy_services
from tidegate_server.wiring.flows import Flows
from tidegate_server.wiring.selection import Selection


class Stores(NamedTuple):
    """The opened stores of one mode.

    `peers` are the other replicas, None where there are none; `live_warnings` tells of the server of facts and flows.
    """

    pins: PinStore
    facts: FactStore
    flows: FlowStore
    agents: AgentStore
    decisions: DecisionStore
    peers: Peers | None = None
    live_warnings: Callable[[], Sequence[str]] = tuple

    def measured(self, measures: Measures, clock: Clock) -> "Stores":
        """The same stores, each operation timed."""
        return Stores(
            MeasuredPins(self.pins, measures, clock),
            MeasuredFacts(self.facts, measures, clock),
            MeasuredFlows(self.flows, measures, clock),
            MeasuredAgents(self.agents, measures, clock),
            MeasuredDecisions(self.decisions, measures, clock),
            self.peers,
            self.live_warnings,
        )


class Secrets(NamedTuple):
    """The server's own keys: of the pins, and of what it signs in tracestate (the first signs, all verify)."""

    pins: bytes
    tracestate: tuple[bytes, ...]


class Application:
    """All parts of one server process, without its listeners."""

    def __init__(
        self,
        source: ConfigurationSource,
        stores: Stores,
        keys: Secrets,
        guard: Guard,
        clock: Clock,
        transport_warnings: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        limits = source.configuration.limits
        self.measures = Measures()
        measured = stores.measured(self.measures, clock)
        self.decisions = WatchedDecisions(measured.decisions)
        self._stores = stores = measured._replace(decisions=self.decisions)
        self._source = source
        self._clock = clock
        self._transport_warnings = transport_warnings
        self.guard = guard
        self.policies = Policies(source.policy)
        self.health = health.Health(clock)
        self.log = QueuedDecisionLog(stores.decisions, clock, queue=source.configuration.decision_log.queue)
        self._new_id = decision_ids()
        self._session_ids = session_ids(keys.pins)
        changes = Changes()
        stores.facts.subscribe(changes.tell)
        self.feeds = self._new_feeds(changes, limits.max_feeds)
        self.cold_wait = ColdWait(changes, self.feeds, clock, max_waiters=limits.max_cold_waiters)
        self._flows = Flows(source, stores.flows, keys.tracestate, self.log, clock, self._new_id)
        self.flows = flow.FlowServicer(self._flows.verbs)
        self.flow_verbs = self._flows.verbs
        self.admission_verbs = self._admission_verbs(PinCodec(keys.pins).pin_id)
        self.admission = admission.AdmissionServicer(
            self.admission_verbs,
            clock,
            flow.flow_contexts(self._flows.verbs.guard),
            limits.default_deadline,
        )
        self._selection = self._new_selection()
        self.selection = selection.SelectionServicer(self._selection.verbs, clock, limits.default_deadline)
        self.operator_verbs = self._operator_verbs()
        self.operator = operator.OperatorServicer(self.operator_verbs)

    @property
    def facts(self) -> FactStore:
        """What collectors have told."""
        return self._stores.facts

    @property
    def selection_verbs(self) -> SelectionVerbs:
        """Those of the configuration in force: they change when it does."""
        return self._selection.verbs

    def _new_feeds(self, changes: Changes, max_feeds: int) -> Feeds:
        peers = self._stores.peers
        return Feeds(changes, max_feeds) if peers is None else SharedFeeds(changes, max_feeds, peers, self._clock)

    def _admission_verbs(self, pin_ids: PinIds) -> admission.Verbs:
        stores, clock = self._stores, self._clock
        admit = Admit(self.policies, stores.facts, stores.pins, pin_ids, self.cold_wait, clock, self._new_id)
        logged = MeasureAdmissions(LogAdmissions(admit, self.log, self._session_ids), self.measures, clock)
        report = Report(self.policies, stores.facts, clock)
        return admission.Verbs(
            logged,
            LookUpPin(self.policies, stores.pins, pin_ids),
            EstablishPin(logged),
            Capacity(self.policies, stores.facts, self.feeds, clock),
            Catalog(self.policies, FEATURES),
            report,
            FeedStreams(self.feeds, report, clock),
        )

    def _operator_verbs(self) -> operator.OperatorVerbs:
        stores = self._stores
        dependencies = {
            "pins": Dependency(stores.pins.healthy, stores.pins.warnings),
            "facts": Dependency(stores.facts.healthy, stores.live_warnings),
            "flows": Dependency(stores.flows.healthy),
            "agents": Dependency(stores.agents.healthy),
            "decisions": Dependency(stores.decisions.healthy, self._log_warnings),
            "transport": Dependency(lambda: True, self._transport_warnings),
        }
        return operator.OperatorVerbs(
            ListPins(stores.pins),
            RetirePins(stores.pins, self._clock),
            VerifyPins(stores.pins),
            ClearBlockers(self.policies, stores.facts, self._clock),
            Status(self.policies, self.feeds, dependencies, lambda: self._source.error, self.health.is_ready),
        )

    def _new_selection(self) -> Selection:
        stores, configuration = self._stores, self._source.configuration
        return Selection(
            configuration,
            stores.agents,
            stores.decisions,
            self.log,
            self._clock,
            self._session_ids,
            self._new_id,
            lambda select: MeasureSelections(select, self.measures, self._clock),
        )

    def _log_warnings(self) -> list[str]:
        return [f"{self.log.dropped} decisions are missing from the log"] if self.log.dropped else []

    def add_to(self, server: grpc.aio.Server) -> Mapping[str, Callable[[], bool]]:
        """Serve every service; return what each needs, by its full name."""
        health_name = health.add_to(server, self.health)
        names = {
            admission.add_to(server, self.admission): self._admission_works,
            flow.add_to(server, self.flows): self._stores.flows.healthy,
            selection.add_to(server, self.selection): self._stores.agents.healthy,
            operator.add_to(server, self.operator): lambda: True,
            **dict.fromkeys(
                add_envoy_services(server, self.admission.Admit, self._flows.verbs.guard, self.guard),
                self._admission_works,
            ),
        }
        if self._source.configuration.reflection:
            reflection.enable_server_reflection((*names, health_name, reflection.SERVICE_NAME), server)
        return names

    def _admission_works(self) -> bool:
        return self._stores.pins.healthy() and self._stores.facts.healthy()

    async def apply(self, tracestate: tuple[bytes, ...]) -> None:
        """Serve under the source's configuration from now on, and sign and verify hops with these keys."""
        self.policies.current = self._source.policy
        self._stores.facts.relimit(self._source.policy.freshness)
        self._flows.apply(tracestate)
        old, self._selection = self._selection, self._new_selection()
        self.selection.use(self._selection.verbs)
        await old.close()

    async def tend(self) -> None:
        """Drop what is past its time, for ever; a task of the server."""
        keep = self._source.configuration.decision_log.retention
        retention = Retention(self._stores.decisions, self._stores.agents, self._clock, keep=keep)
        tasks = [retention.run(), tend(self._stores.flows, self._clock)]
        if isinstance(self.feeds, SharedFeeds):
            tasks.append(self.feeds.run())
        await asyncio.gather(*tasks)

    async def close(self) -> None:
        """Write what is queued for the log, and let go of the providers."""
        await self._selection.close()
        await self.log.close()


def decision_ids() -> Callable[[], str]:
    """Ids that no other process makes: 64 random bits at the start of the process, then a count."""
    prefix = secrets.token_hex(8)
    numbers = itertools.count(1)
    return lambda: f"{prefix}{next(numbers):08x}"


def session_ids(pin_key: bytes) -> Callable[[str, str], str]:
    """The keyed hash of a worker's or session's id within a namespace; its key is made of the pins'."""
    key = hashlib.blake2b(pin_key).digest()
    return lambda namespace, session_id: session_hash(key, namespace, session_id)
