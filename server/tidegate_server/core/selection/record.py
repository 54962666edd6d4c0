"""What the decision log keeps of a selection, and the way back to its pick (§10).

Neither the query nor the conversation is kept: the scores that they led to and the model's choice are enough to compute
the pick again.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from tidegate_server.core.decision_record import Tally
from tidegate_server.core.model import SECOND
from tidegate_server.core.selection.budget import cost
from tidegate_server.core.selection.model import Agent, AssignmentSource, Price, StageReport, Usage
from tidegate_server.core.selection.ranking import Ranked

_IDS_KEPT = 1_000


class Call(NamedTuple):
    """The call of the selecting model: a line of its own, not a part of what the picked agent costs."""

    model: str
    usage: Usage
    price: Price | None
    cause: str

    @property
    def cost(self) -> str:
        """Exact, in plain digits, in the price's currency; "" without a price."""
        return cost(self.usage, self.price)


class SelectionFacts(NamedTuple):
    """What a selection rests on. `call` None: no model was asked. `stages` empty: the pipeline did not answer."""

    caller: str
    source: AssignmentSource
    agents: Sequence[Agent]
    shortlist: Sequence[Ranked]
    rerank: Sequence[Ranked]
    stages: Sequence[StageReport]
    call: Call | None
    picked: Agent
    reasoning: str = ""


def selection_detail(facts: SelectionFacts) -> dict[str, Any]:
    """All that the pick rests on, as JSON data."""
    return {
        "caller": facts.caller,
        "source": facts.source.name,
        "agents_considered": len(facts.agents),
        "agents": [agent.agent_id for agent in facts.agents[:_IDS_KEPT]],
        "shortlist": [[entry.agent.agent_id, entry.score] for entry in facts.shortlist],
        "rerank": [[entry.agent.agent_id, entry.score] for entry in facts.rerank],
        "stages": [_stage_data(report) for report in facts.stages],
        "selection_call": None if facts.call is None else _call_data(facts.call),
        "chosen": facts.picked.agent_id if facts.call is not None and not facts.call.cause else "",
        "picked": facts.picked.agent_id,
        "fallback_used": facts.source is not AssignmentSource.PIPELINE,
        "reasoning": facts.reasoning,
    }


def repick(detail: Mapping[str, Any]) -> str:
    """The pick, computed again from a detail: what the model chose of the list, else the highest-ranked."""
    ranked: list[str] = [agent_id for agent_id, _ in detail["rerank"]]
    chosen: str = detail["chosen"]
    if chosen in ranked:
        return chosen
    picked: str = detail["picked"]  # a name match ranks nobody
    return ranked[0] if ranked else picked


def selection_tallies(facts: SelectionFacts) -> tuple[Tally, ...]:
    """What a selection adds to the statistics beside itself: its stages, and the call as a line of its own."""
    fallback = float(facts.source is not AssignmentSource.PIPELINE)
    found = [Tally("selection", facts.picked.agent_id, "fallback_used", fallback)]
    for report in facts.stages:
        key = report.stage.name.lower()
        figures = {
            "runs": 1.0,
            "skipped": float(report.skipped),
            "degraded": float(report.degraded),
            "candidates": float(report.candidates),
            "latency_seconds": report.latency / SECOND,
        }
        found += [Tally("selection_stage", key, figure, value) for figure, value in figures.items()]
    if facts.call is not None:
        found += _call_tallies(facts.call)
    return tuple(found)


def _call_tallies(call: Call) -> list[Tally]:
    figures = {
        "calls": 1.0,
        "failed": float(bool(call.cause)),
        "input_tokens": float(call.usage.input_tokens),
        "output_tokens": float(call.usage.output_tokens),
    }
    if call.price is not None:
        figures[f"cost_{call.price.currency.lower()}"] = float(Decimal(call.cost))
    return [Tally("selection_call", call.model, figure, value) for figure, value in figures.items()]


def _stage_data(report: StageReport) -> dict[str, Any]:
    return {
        "stage": report.stage.name,
        "candidates": report.candidates,
        "latency_ms": round(report.latency * 1000 / SECOND, 3),
        "degraded": report.degraded,
        "skipped": report.skipped,
        "cause": report.cause,
    }


def _call_data(call: Call) -> dict[str, Any]:
    return {
        "model": call.model,
        "input_tokens": call.usage.input_tokens,
        "output_tokens": call.usage.output_tokens,
        "cost": call.cost,
        "currency": call.price.currency if call.price else "",
        "cause": call.cause,
    }
