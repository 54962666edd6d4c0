"""The caller's time, shared out; what a call costs, exact."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_server.core.model import SECOND
from tidegate_server.core.selection.budget import cost, stage_budget
from tidegate_server.core.selection.model import Price, Stage, StageDeadlines, Usage

DEADLINES = StageDeadlines()


def test_with_time_enough_each_stage_has_its_own_deadline() -> None:
    budgets = [stage_budget(stage, DEADLINES, 30 * SECOND) for stage in Stage]
    assert budgets == [2 * SECOND, 2 * SECOND, 10 * SECOND]


def test_with_less_each_stage_has_its_share() -> None:
    left = 1_450_000_000
    assert stage_budget(Stage.SHORTLIST, DEADLINES, left) == 200_000_000
    assert stage_budget(Stage.SELECT, DEADLINES, left) == 1_400_000_000


def test_without_time_there_is_none() -> None:
    assert [stage_budget(stage, DEADLINES, 0) for stage in Stage] == [0, 0, 0]


@given(st.integers(1000, 100 * SECOND), st.tuples(*[st.integers(1, 20 * SECOND)] * 3))
def test_stages_that_use_all_their_time_end_before_the_caller_s(left: int, own: tuple[int, int, int]) -> None:
    deadlines = StageDeadlines(*own)
    spent = 0
    for stage in Stage:
        budget = stage_budget(stage, deadlines, left - spent)
        assert budget <= own[stage - 1]
        spent += budget
    assert spent < left


@pytest.mark.parametrize(
    ("usage", "price", "expected"),
    [
        (Usage(1000, 100), Price("USD", Decimal("2.50"), Decimal("10.00")), "0.0035"),
        (Usage(1, 0), Price("USD", Decimal("0.15"), Decimal("0.60")), "0.00000015"),
        (Usage(0, 0), Price("USD", Decimal("2.50"), Decimal("10.00")), "0"),
        (Usage(4_000_000, 0), Price("USD", Decimal("2.50"), Decimal(10)), "10"),
        (Usage(10**9, 10**9), Price("EUR", Decimal(100), Decimal(900)), "1000000"),
        (Usage(5, 5), None, ""),
    ],
)
def test_a_cost_is_exact_and_in_plain_digits(usage: Usage, price: Price | None, expected: str) -> None:
    assert cost(usage, price) == expected
