"""Which facts a retraction takes away."""

from tidegate_server.core.model import Fact
from tidegate_server.core.observations import MODEL_SCOPE
from tidegate_server.ports import FactFilter


def is_retracted(fact: Fact, which: FactFilter) -> bool:
    """Whether a retraction means this fact: only its own collector's, and only what the filter names (§3.7)."""
    key = fact.key
    if (fact.identity, fact.collector) != (which.identity, which.collector):
        return False
    if which.providers and key.provider not in which.providers:
        return False
    if which.window and (key.kind != "quota" or key.part != which.window):
        return False
    if which.scope.startswith(MODEL_SCOPE):
        return key.model == which.scope.removeprefix(MODEL_SCOPE)
    return not which.scope or key.scope == which.scope
