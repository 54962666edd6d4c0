"""Every admission leaves a record in the decision log, off the response path (§10 of the contract).

A wrapper with the verb's own signature: who asks for an admission does not know that it is logged.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from tidegate_server.core.decision_record import ADMISSION, DecisionRecord, DetailWriter
from tidegate_server.core.model import Caller, PinState
from tidegate_server.ports import DecisionLog
from tidegate_server.usecases.admit import Admission, AdmitAsk, core_request
from tidegate_server.usecases.cold_wait import WaitBudget


class Admits(Protocol):
    """Admit, or what wraps it."""

    async def __call__(self, ask: AdmitAsk, caller: Caller, budget: WaitBudget) -> Admission:
        """See Admit."""
        ...

    def at_once(self, ask: AdmitAsk, caller: Caller) -> Admission | None:
        """See Admit."""
        ...


class LogAdmissions:
    """Admit, with a record of each answer. `session_ids` hashes a worker's id: the id itself is never written."""

    def __init__(self, admit: Admits, log: DecisionLog, session_ids: Callable[[str, str], str]) -> None:
        self._admit = admit
        self._log = log
        self._session_ids = session_ids
        self._details = DetailWriter()

    async def __call__(self, ask: AdmitAsk, caller: Caller, budget: WaitBudget) -> Admission:
        """Answer as Admit does; a dry run leaves no record, for nothing was decided by it."""
        admission = await self._admit(ask, caller, budget)
        if not ask.dry_run:
            self._log.append(partial(self._record, admission, caller.namespace))
        return admission

    def at_once(self, ask: AdmitAsk, caller: Caller) -> Admission | None:
        """The same for what needs no await."""
        admission = self._admit.at_once(ask, caller)
        if admission is not None and not ask.dry_run:
            self._log.append(partial(self._record, admission, caller.namespace))
        return admission

    def _record(self, admission: Admission, namespace: str) -> DecisionRecord:
        """Made by the log's writer; an admission is immutable, and so is all that it holds."""
        decision, ask = admission.decision, admission.ask
        return DecisionRecord(
            admission.decision_id,
            admission.wall,
            ADMISSION,
            ask.model,
            decision.verdict.name,
            "" if decision.refusal is None else decision.refusal.reason.name,
            self._session_ids(namespace, ask.worker_id) if ask.worker_id else "",
            namespace,
            self._detail(admission),
        )

    def _detail(self, admission: Admission) -> str:
        if admission.route is None:  # an explicit model: no policy was asked, so there is nothing to compute again
            return "{}"
        # A pin that was made by this very admission is not what the decision was given.
        given = admission.pin if admission.decision.pin_state is PinState.EXISTING else None
        request = core_request(admission.ask)
        return self._details.text(admission.route, request, given, admission.decision, admission.flow)
