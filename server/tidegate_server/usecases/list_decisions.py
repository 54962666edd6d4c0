"""ListDecisions: what was decided, and why, the newest first (§10 of the contract)."""

from typing import NamedTuple

from tidegate_server.core.decision_record import ADMISSION, HOP, SELECTION
from tidegate_server.core.model import Caller
from tidegate_server.errors import FieldViolation, InvalidRequest, NotFound
from tidegate_server.ports import DecisionFilter, DecisionPage, DecisionStore
from tidegate_server.usecases.append_turn import SessionHash

KINDS = (ADMISSION, HOP, SELECTION)


class DecisionsAsk(NamedTuple):
    """Which decisions; an empty field does not filter. `session_id` is also a worker's id, `model` also a route."""

    session_id: str = ""
    model: str = ""
    kind: str = ""
    decision_id: str = ""


class ListDecisions:
    """Reads the log of the caller's namespace. What was decided within the last second may not be there yet."""

    def __init__(self, store: DecisionStore, session_hash: SessionHash) -> None:
        self._store = store
        self._session_hash = session_hash

    async def __call__(self, ask: DecisionsAsk, caller: Caller, *, before: int, limit: int) -> DecisionPage:
        """Raises InvalidRequest, NotFound for a `decision_id` that the log does not hold, StoreUnavailable."""
        if ask.kind and ask.kind not in KINDS:
            raise InvalidRequest([FieldViolation("kind", f"is none of {', '.join(KINDS)}")])
        session = self._session_hash(caller.namespace, ask.session_id) if ask.session_id else ""
        which = DecisionFilter(caller.namespace, session, ask.model, ask.kind, ask.decision_id)
        page = await self._store.list(which, before=before, limit=limit)
        if ask.decision_id and not page.records and before == 0:
            raise NotFound("decision", ask.decision_id)
        return page
