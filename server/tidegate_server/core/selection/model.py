"""The words of agent selection as types (§9). Enumerations carry the numbers of the wire."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from tidegate_server.core.model import SECOND, Nanos

ORCHESTRATOR = "orchestrator"
"""The agent id by which a caller means its own loop; no agent can be registered under it."""

Vector: TypeAlias = Sequence[float]
"""An embedding. Two vectors compare only within one space: the same model, the same length."""


class Agent(NamedTuple):
    """What an owner says about an agent. Strings are the owner's words, compared byte for byte."""

    agent_id: str
    name: str
    description: str = ""
    skills: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    owner: str = ""
    visible_to: tuple[str, ...] = ()
    url: str = ""


class Turn(NamedTuple):
    """One message of a session; `agent_id` is who handled it, "" when nobody or unknown."""

    role: str
    content: str
    agent_id: str = ""


class Stage(IntEnum):
    """The three stages, in their order."""

    SHORTLIST = 1
    RERANK = 2
    SELECT = 3


class StageReport(NamedTuple):
    """What one stage did.

    `candidates` is how many agents it passed on. `skipped`: it had nothing to do, and called nobody. `degraded`: it
    fell forward. `cause` says why, in words that name no address and no secret.
    """

    stage: Stage
    candidates: int
    latency: Nanos = 0
    degraded: bool = False
    skipped: bool = False
    cause: str = ""


class AssignmentSource(IntEnum):
    """Where a workflow step's agent comes from."""

    GIVEN = 1
    PIPELINE = 2
    PIPELINE_FALLBACK = 3
    NAME_MATCH = 4


class DispatchTarget(IntEnum):
    """Who takes a chat message: the caller's own loop, or an agent."""

    ORCHESTRATOR = 1
    AGENT = 2


class Usage(NamedTuple):
    """The tokens that one call of a model was billed for, as the endpoint reported them."""

    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Both together."""
        return self.input_tokens + self.output_tokens


class Price(NamedTuple):
    """What a million tokens cost (`prices` of §2), exact."""

    currency: str
    input_per_million: Decimal
    output_per_million: Decimal


@dataclass(frozen=True, slots=True)
class StageDeadlines:
    """For how long each stage may run at the most, within the caller's deadline."""

    shortlist: Nanos = 2 * SECOND
    rerank: Nanos = 2 * SECOND
    select: Nanos = 10 * SECOND


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """The settings `selection` of §2, endpoints aside.

    Fleets smaller than `shortlist_threshold` are not narrowed; larger ones to `shortlist_size`. Of a session the newest
    `max_history_messages` turns are kept and read.
    """

    shortlist_threshold: int = 15
    shortlist_size: int = 10
    max_history_messages: int = 20
    deadlines: StageDeadlines = StageDeadlines()
