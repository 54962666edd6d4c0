"""Why a decision came out as it did: every outcome has a rule of its own."""

from decimal import Decimal

from tidegate_server.core.decide import Decision
from tidegate_server.core.explain import BYPASSED_RULE, REFUSED_RULES, rule_of
from tidegate_server.core.model import PinState, RefusalReason, Tier, Verdict
from tidegate_server.core.policy import Candidate, Route
from tidegate_server.core.refusals import Refusal
from tidegate_server.core.selection.model import Agent, AssignmentSource, Price, Usage
from tidegate_server.core.selection.record import Call, SelectionFacts, selection_tallies

LOCAL = Candidate("l", "l", "m", Tier.LOCAL, "none", "b")
PAID = Candidate("p", "p", "m", Tier.PAID, "none", "b")
ROUTE = Route("r", "routine", (LOCAL, PAID), "f", 1, 1, allow_paid=True)
FLASH = Route("r", "routine", (LOCAL, PAID), "f", 1, 1, allow_paid=True, prefer_paid_flash=True)


def test_every_reason_has_a_rule_in_plain_words() -> None:
    assert set(REFUSED_RULES) == set(RefusalReason)
    assert len(set(REFUSED_RULES.values())) == len(RefusalReason)
    for reason in RefusalReason:
        decision = Decision(Verdict.REFUSED, refusal=Refusal(reason, ""))
        assert rule_of(decision, ROUTE) == REFUSED_RULES[reason]


def test_every_admission_has_the_rule_that_decided() -> None:
    new, pinned = PinState.NEW, PinState.EXISTING
    assert rule_of(Decision(Verdict.BYPASSED, LOCAL), None) == BYPASSED_RULE
    rules = [
        rule_of(Decision(Verdict.ADMITTED, LOCAL, pinned), ROUTE),
        rule_of(Decision(Verdict.ADMITTED, LOCAL, new), ROUTE),
        rule_of(Decision(Verdict.ADMITTED, PAID, new), ROUTE),
        rule_of(Decision(Verdict.ADMITTED, PAID, new), FLASH),
    ]
    assert len({BYPASSED_RULE, *rules}) == 5
    assert "confirmed blocker" in rules[2]
    assert "prefers" in rules[3]


def test_a_call_without_a_price_costs_nothing_that_is_known() -> None:
    agent = Agent("a", "A")

    def figures(price: Price | None) -> set[str]:
        call = Call("gpt-4o", Usage(10, 1), price, "")
        facts = SelectionFacts("ann", AssignmentSource.PIPELINE, [agent], (), (), (), call, agent)
        return {tally.figure for tally in selection_tallies(facts) if tally.group == "selection_call"}

    priced = figures(Price("USD", Decimal(1), Decimal(1)))
    assert priced - figures(None) == {"cost_usd"}
