"""AppendTurn: tell what was said in a session, so that its next query is seen in its light."""

from collections.abc import Callable
from typing import TypeAlias

from tidegate_server.core.model import Caller
from tidegate_server.core.requests import id_fault
from tidegate_server.core.selection.model import SelectionSettings, Turn
from tidegate_server.errors import FieldViolation, InvalidRequest
from tidegate_server.ports import AgentStore, Clock

SessionHash: TypeAlias = Callable[[str, str], str]
"""The keyed hash of a namespace and a session's or worker's id (`core.decision_record.session_hash` with its key)."""

_CONTENT_CHARACTERS = 8_192
"""What of a turn is kept: more tells neither an embedding nor a model what the session is about."""


class AppendTurn:
    """A session holds its newest `max_history_messages` turns; with 0 none is kept."""

    def __init__(
        self, agents: AgentStore, clock: Clock, session_hash: SessionHash, settings: SelectionSettings
    ) -> None:
        self._agents = agents
        self._clock = clock
        self._session_hash = session_hash
        self._settings = settings

    async def __call__(self, session_id: str, turn: Turn, caller: Caller) -> None:
        """Raises InvalidRequest, StoreUnavailable."""
        faults = [
            ("session_id", id_fault(session_id)),
            ("turn.role", id_fault(turn.role)),
            ("turn.agent_id", id_fault(turn.agent_id, required=False)),
        ]
        violations = [FieldViolation(field, fault) for field, fault in faults if fault]
        if violations:
            raise InvalidRequest(violations)
        keep = self._settings.max_history_messages
        if keep > 0:
            session = self._session_hash(caller.namespace, session_id)
            kept = turn._replace(content=turn.content[:_CONTENT_CHARACTERS])
            await self._agents.append_turn(caller.namespace, session, kept, keep=keep, when=self._clock.wall())
