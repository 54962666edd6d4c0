"""The verbs, measured: wrappers with the verbs' own signatures."""

from tidegate_server.core.model import Caller
from tidegate_server.errors import TidegateError
from tidegate_server.metrics.measures import DecisionCell, Measures
from tidegate_server.ports import Clock, Deadline
from tidegate_server.usecases.admit import Admission, AdmitAsk
from tidegate_server.usecases.cold_wait import WaitBudget
from tidegate_server.usecases.log_admissions import Admits
from tidegate_server.usecases.select_agent import Selection, SelectionAsk, Selects


class MeasureAdmissions:
    """Admit, counted and timed. A dry run decides nothing, so it is neither."""

    def __init__(self, admit: Admits, measures: Measures, clock: Clock) -> None:
        self._admit = admit
        self._measures = measures
        self._now = clock.monotonic

    async def __call__(self, ask: AdmitAsk, caller: Caller, budget: WaitBudget) -> Admission:
        """Answer as Admit does; an error is counted by its kind."""
        started = self._now()
        try:
            admission = await self._admit(ask, caller, budget)
        except TidegateError as error:
            self._measures.admit_errors[type(error).__name__] += 1
            raise
        if not ask.dry_run:
            self._count(admission)
            self._measures.admit.observe(self._now() - started)
        return admission

    def at_once(self, ask: AdmitAsk, caller: Caller) -> Admission | None:
        """The same for what needs no await."""
        started = self._now()
        try:
            admission = self._admit.at_once(ask, caller)
        except TidegateError as error:
            self._measures.admit_errors[type(error).__name__] += 1
            raise
        if admission is not None and not ask.dry_run:
            self._count(admission)
            self._measures.admit.observe(self._now() - started)
        return admission

    def _count(self, admission: Admission) -> None:
        decision, route = admission.decision, admission.route
        candidate, refusal = decision.candidate, decision.refusal
        fallback = route is not None and candidate is not None and candidate is not route.candidates[0]
        key = (
            admission.ask.model,
            decision.verdict,
            0 if refusal is None else refusal.reason,
            "" if candidate is None else candidate.name,
            "" if candidate is None else candidate.provider,
            decision.pin_state,
            fallback,
        )
        cell = self._measures.decisions.get(key)
        if cell is None:
            cell = self._measures.decisions[key] = _new_cell(admission, fallback)
        cell.count += 1


def _new_cell(admission: Admission, fallback: bool) -> DecisionCell:
    decision = admission.decision
    candidate, refusal = decision.candidate, decision.refusal
    return DecisionCell(
        admission.ask.model,
        decision.verdict,
        "none" if refusal is None else refusal.code,
        "" if candidate is None else candidate.provider,
        None if candidate is None else candidate.tier,
        decision.pin_state,
        fallback,
    )


class MeasureSelections:
    """SelectAgent, counted by how it ended and timed."""

    def __init__(self, select: Selects, measures: Measures, clock: Clock) -> None:
        self._select = select
        self._measures = measures
        self._now = clock.monotonic

    async def __call__(self, ask: SelectionAsk, caller: Caller, deadline: Deadline) -> Selection:
        """Answer as SelectAgent does."""
        started = self._now()
        try:
            selection = await self._select(ask, caller, deadline)
        except TidegateError:
            self._measures.selections["error"] += 1
            raise
        self._measures.selections["fallback" if selection.fallback_used else "selected"] += 1
        self._measures.select.observe(self._now() - started)
        return selection
