"""SelectAgent: the three stages over the caller's agents; the worst case is a slightly worse pick (§9)."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from tidegate_server.core.decision_record import SELECTION, DecisionRecord
from tidegate_server.core.model import Caller, Instant
from tidegate_server.core.requests import id_fault
from tidegate_server.core.selection.budget import stage_budget
from tidegate_server.core.selection.model import Agent, AssignmentSource, Price, Stage, StageReport, Turn, Usage
from tidegate_server.core.selection.ranking import recent
from tidegate_server.core.selection.record import Call, SelectionFacts, selection_detail, selection_tallies
from tidegate_server.errors import FieldViolation, InvalidRequest, NotFound, StoreUnavailable
from tidegate_server.ports import AgentStore, Clock, Deadline, DecisionLog
from tidegate_server.usecases.append_turn import SessionHash
from tidegate_server.usecases.deadlines import within
from tidegate_server.usecases.fleet import accessible_agents
from tidegate_server.usecases.selection_stages import Passed, Picked, Stages, cause_of


class SelectionAsk(NamedTuple):
    """A query to find an agent for. `history`, when given, stands in the place of the stored session."""

    query: str
    on_behalf_of: str = ""
    session_id: str = ""
    history: tuple[Turn, ...] = ()


class Selection(NamedTuple):
    """The pick, and how it came about. `cost` "": no model was called, or it has no price."""

    agent: Agent
    source: AssignmentSource
    reasoning: str
    stages: tuple[StageReport, ...]
    usage: Usage
    cost: str
    decision_id: str
    agents_considered: int

    @property
    def fallback_used(self) -> bool:
        """Whether the highest-ranked candidate was taken, because no model picked."""
        return self.source is not AssignmentSource.PIPELINE

    @property
    def cause(self) -> str:
        """Why no model picked; "" when one did."""
        return self.stages[-1].cause if self.fallback_used else ""


Selects: TypeAlias = Callable[[SelectionAsk, Caller, Deadline], Coroutine[Any, Any, Selection]]
"""SelectAgent, or what wraps it."""


class NoAgents(NotFound):
    """The caller may see no agent at all: SelectAgent's only NotFound."""

    def __init__(self) -> None:
        super().__init__("agent", "")
        self.args = ("there is no agent that the caller may see",)


@dataclass(frozen=True, slots=True)
class SelectionLog:
    """How a selection gets into the decision log."""

    log: DecisionLog
    clock: Clock
    session_hash: SessionHash
    mint: Callable[[], str]

    def write(self, facts: SelectionFacts, ask: SelectionAsk, caller: Caller) -> str:
        """Log the selection off the response path; return its decision id."""
        decision_id, wall = self.mint(), self.clock.wall()
        fell = facts.source is not AssignmentSource.PIPELINE
        session = self.session_hash(caller.namespace, ask.session_id) if ask.session_id else ""
        causes = [f"{report.stage.name}: {report.cause}" for report in facts.stages if report.degraded]
        self.log.append(
            lambda: DecisionRecord(
                decision_id,
                wall,
                SELECTION,
                facts.picked.agent_id,
                "FALLBACK" if fell else "SELECTED",
                "; ".join(causes),
                session,
                caller.namespace,
                json.dumps(selection_detail(facts), ensure_ascii=False),
                selection_tallies(facts),
            )
        )
        return decision_id


class SelectAgent:
    """Registry and history are read at once; then each stage has its own time within the caller's."""

    def __init__(self, agents: AgentStore, stages: Stages, log: SelectionLog, prices: Mapping[str, Price]) -> None:
        self._agents = agents
        self._stages = stages
        self._log = log
        self._prices = prices

    async def __call__(self, ask: SelectionAsk, caller: Caller, deadline: Deadline) -> Selection:
        """Raises InvalidRequest, NoAgents, and StoreUnavailable when the registry cannot be read in time."""
        faults = [
            ("query", "" if ask.query.strip() else "is missing"),
            ("session_id", id_fault(ask.session_id, required=False)),
        ]
        violations = [FieldViolation(field, fault) for field, fault in faults if fault]
        if violations:
            raise InvalidRequest(violations)
        agents, (history, history_cause) = await self._read(ask, caller, deadline)
        if not agents:
            raise NoAgents
        started = self._now()
        short = await self._stages.shortlist(ask.query, agents, self._budget(Stage.SHORTLIST, deadline))
        ranked_at = self._now()
        if history_cause:
            ranked = Passed(short.ranked, degraded=True, cause=history_cause)
        else:
            ranked = await self._stages.rerank(ask.query, history, short, self._budget(Stage.RERANK, deadline))
        asked_at = self._now()
        picked = await self._stages.select(ask.query, history, ranked, self._budget(Stage.SELECT, deadline))
        reports = (
            _report(Stage.SHORTLIST, short, ranked_at - started),
            _report(Stage.RERANK, ranked, asked_at - ranked_at),
            StageReport(
                Stage.SELECT, 1, self._now() - asked_at, bool(picked.cause), picked.usage is None, picked.cause
            ),
        )
        facts = SelectionFacts(
            ask.on_behalf_of,
            AssignmentSource.PIPELINE_FALLBACK if picked.cause else AssignmentSource.PIPELINE,
            agents,
            short.ranked,
            ranked.ranked,
            reports,
            self._call(picked),
            picked.agent,
            picked.reasoning,
        )
        return self._answer(facts, self._log.write(facts, ask, caller))

    async def _read(
        self, ask: SelectionAsk, caller: Caller, deadline: Deadline
    ) -> tuple[tuple[Agent, ...], tuple[tuple[Turn, ...], str]]:
        """The fleet, and the history with why there is none."""
        clock = self._stages.clock
        left = deadline.left(self._now())
        fleet = within(clock, left - left // 20, accessible_agents(self._agents, caller, ask.on_behalf_of))
        try:
            return await asyncio.gather(fleet, self._history(ask, caller, deadline))
        except TimeoutError as error:
            raise StoreUnavailable("agents") from error

    async def _history(self, ask: SelectionAsk, caller: Caller, deadline: Deadline) -> tuple[tuple[Turn, ...], str]:
        limit = self._stages.settings.max_history_messages
        if ask.history or not ask.session_id or limit == 0:
            return recent(ask.history, limit), ""
        session = self._log.session_hash(caller.namespace, ask.session_id)
        read = self._agents.turns(caller.namespace, session, limit=limit)
        try:
            turns = await within(self._stages.clock, self._budget(Stage.SHORTLIST, deadline), read)
        except Exception as error:  # noqa: BLE001 - a session that cannot be read costs a better pick, not the query (§9)
            if not isinstance(error, StoreUnavailable | TimeoutError):
                cause_of(error)
            return (), "the session's history could not be read"
        return recent(turns, limit), ""

    def _now(self) -> Instant:
        return self._stages.clock.monotonic()

    def _budget(self, stage: Stage, deadline: Deadline) -> int:
        return stage_budget(stage, self._stages.settings.deadlines, deadline.left(self._now()))

    def _call(self, picked: Picked) -> Call | None:
        selector = self._stages.selector
        if selector is None or picked.usage is None:
            return None
        return Call(selector.model, picked.usage, self._prices.get(selector.model), picked.cause)

    @staticmethod
    def _answer(facts: SelectionFacts, decision_id: str) -> Selection:
        return Selection(
            facts.picked,
            facts.source,
            facts.reasoning,
            tuple(facts.stages),
            facts.call.usage if facts.call else Usage(),
            facts.call.cost if facts.call else "",
            decision_id,
            len(facts.agents),
        )


def _report(stage: Stage, passed: Passed, latency: int) -> StageReport:
    return StageReport(stage, len(passed.ranked), latency, passed.degraded, passed.skipped, passed.cause)
