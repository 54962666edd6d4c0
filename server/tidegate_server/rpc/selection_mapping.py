"""Agents, selections, statistics and decisions between the wire and the core."""

from tidegate.v1 import selection_pb2 as wire

from tidegate_server.core.decision_record import DecisionRecord
from tidegate_server.core.selection.model import Agent, StageReport, Turn
from tidegate_server.errors import FieldViolation, InvalidRequest
from tidegate_server.rpc.fact_mapping import duration, timestamp
from tidegate_server.usecases.assign_step import Assignment
from tidegate_server.usecases.dispatch import Dispatched
from tidegate_server.usecases.select_agent import Selection, SelectionAsk
from tidegate_server.usecases.stats import Stats

MAX_HISTORY = 1_000
"""Turns in one request; far above what is ever read of them."""


def agent_of(message: wire.Agent) -> Agent:
    """The agent that a request describes."""
    return Agent(
        message.agent_id,
        message.name,
        message.description,
        tuple(message.skills),
        tuple(message.tags),
        message.owner,
        tuple(message.visible_to),
        message.url,
    )


def agent_message(agent: Agent) -> wire.Agent:
    """A registered agent."""
    return wire.Agent(**agent._asdict())


def turn_of(message: wire.Turn) -> Turn:
    """One turn of a session."""
    return Turn(message.role, message.content, message.agent_id)


def selection_ask(request: wire.SelectAgentRequest) -> SelectionAsk:
    """The query that an agent is wanted for."""
    if len(request.history) > MAX_HISTORY:
        raise InvalidRequest([FieldViolation("history", f"has more than {MAX_HISTORY} items")])
    history = tuple(turn_of(turn) for turn in request.history)
    return SelectionAsk(request.query, request.caller, request.session_id, history)


def selection_response(selection: Selection) -> wire.SelectAgentResponse:
    """The pick, and how it came about."""
    return wire.SelectAgentResponse(
        agent=agent_message(selection.agent),
        fallback_used=selection.fallback_used,
        reasoning=selection.reasoning,
        stages=[_stage_message(report) for report in selection.stages],
        selection_tokens=selection.usage.tokens,
        selection_cost=selection.cost,
        decision_id=selection.decision_id,
        agents_considered=selection.agents_considered,
    )


def assignment_response(assignment: Assignment) -> wire.AssignStepResponse:
    """The agent of a step, and where it comes from."""
    return wire.AssignStepResponse(
        agent=agent_message(assignment.agent),
        source=assignment.source.value,  # type: ignore[arg-type] # the enums share their numbers
        cause=assignment.cause,
        decision_id=assignment.decision_id,
    )


def dispatch_response(dispatched: Dispatched) -> wire.DispatchResponse:
    """Who takes a message."""
    return wire.DispatchResponse(
        target=dispatched.target.value,  # type: ignore[arg-type]
        agent=None if dispatched.agent is None else agent_message(dispatched.agent),
    )


def stats_response(stats: Stats) -> wire.GetStatsResponse:
    """A rollup with its moment."""
    return wire.GetStatsResponse(
        as_of_time=timestamp(stats.as_of),
        rows=[wire.StatsRow(group=row.group, key=row.key, figures=row.figures) for row in stats.rows],
    )


def decision_message(record: DecisionRecord) -> wire.DecisionRecord:
    """One logged decision."""
    return wire.DecisionRecord(
        decision_id=record.decision_id,
        decide_time=timestamp(record.decide_time),
        kind=record.kind,
        subject=record.subject,
        outcome=record.outcome,
        reason=record.reason,
        detail_json=record.detail,
    )


def _stage_message(report: StageReport) -> wire.StageReport:
    return wire.StageReport(
        stage=report.stage.value,  # type: ignore[arg-type]
        candidates=report.candidates,
        latency=duration(report.latency),
        degraded=report.degraded,
        skipped=report.skipped,
        cause=report.cause,
    )
