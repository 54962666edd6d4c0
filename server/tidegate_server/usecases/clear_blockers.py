"""ClearBlockers: an operator lifts what a collector reported (§3.6 of the contract)."""

from tidegate_server.core.model import Blocker
from tidegate_server.errors import FieldViolation, InvalidRequest, NotFound
from tidegate_server.ports import FactStore
from tidegate_server.usecases.policies import Policies


class ClearBlockers:
    """Removes BLOCKED rows; a collector that still sees the blocker reports it again."""

    def __init__(self, policies: Policies, facts: FactStore) -> None:
        self._policies = policies
        self._facts = facts

    async def __call__(self, provider: str, model: str, blocker: Blocker, why: str) -> int:
        """How many rows were removed. Raises NotFound, InvalidRequest without a reason, StoreUnavailable."""
        known = self._policies.current.providers.get(provider)
        if known is None:
            raise NotFound("provider", provider)
        if model and model not in known.models:
            raise NotFound("model", model)
        if not why.strip():
            raise InvalidRequest([FieldViolation("reason", "is missing; it is kept in the log")])
        return await self._facts.clear(provider, known.models.get(model, ""), blocker)
