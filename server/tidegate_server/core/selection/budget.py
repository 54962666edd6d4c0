"""How the caller's time is shared out, and what a call costs."""

from decimal import Decimal

from tidegate_server.core.model import SECOND, Nanos
from tidegate_server.core.selection.model import Price, Stage, StageDeadlines, Usage

_ANSWER_RESERVE = SECOND // 20
"""Kept back of the caller's time for making and sending the answer; a tenth of it when there is less."""


def stage_budget(stage: Stage, deadlines: StageDeadlines, left: Nanos) -> Nanos:
    """For how long `stage` may run when `left` remains until the caller's deadline.

    Its own deadline, and when the time is too short for all that is still to come, its share of it: a slow first stage
    must not take the time of the one that picks.
    """
    own = {Stage.SHORTLIST: deadlines.shortlist, Stage.RERANK: deadlines.rerank, Stage.SELECT: deadlines.select}
    to_come = sum(limit for later, limit in own.items() if later >= stage)
    spendable = max(0, left - min(_ANSWER_RESERVE, left // 10))
    return min(own[stage], spendable * own[stage] // to_come)


def cost(usage: Usage, price: Price | None) -> str:
    """What `usage` costs, exact and in plain digits; "" when there is no price to reckon with."""
    if price is None:
        return ""
    million = Decimal(1_000_000)
    amount = (usage.input_tokens * price.input_per_million + usage.output_tokens * price.output_per_million) / million
    plain = f"{amount:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain
