"""Agent selection: its providers and use cases, composed from the configuration in force."""

import os
from collections.abc import Callable
from pathlib import Path

from tidegate_server.config import Configuration
from tidegate_server.core.selection.model import Price, SelectionSettings, StageDeadlines
from tidegate_server.ports import AgentStore, Clock, DecisionLog, DecisionStore, Embedder, Selector
from tidegate_server.providers.endpoint import Endpoint
from tidegate_server.providers.openai_embedder import OpenAiEmbedder
from tidegate_server.providers.openai_selector import OpenAiSelector
from tidegate_server.providers.packaged_embedder import PackagedEmbedder
from tidegate_server.rpc.selection import SelectionVerbs
from tidegate_server.usecases.agent_embeddings import AgentEmbeddings
from tidegate_server.usecases.append_turn import AppendTurn
from tidegate_server.usecases.assign_step import AssignStep
from tidegate_server.usecases.deregister_agent import DeregisterAgent
from tidegate_server.usecases.dispatch import Dispatch
from tidegate_server.usecases.list_agents import ListAgents
from tidegate_server.usecases.list_decisions import ListDecisions
from tidegate_server.usecases.register_agent import RegisterAgent
from tidegate_server.usecases.select_agent import SelectAgent, SelectionLog, Selects
from tidegate_server.usecases.selection_stages import Stages
from tidegate_server.usecases.stats import GetStats


class Selection:
    """The verbs under one configuration, and the providers that they hold open."""

    def __init__(
        self,
        configuration: Configuration,
        agents: AgentStore,
        decisions: DecisionStore,
        log: DecisionLog,
        clock: Clock,
        session_ids: Callable[[str, str], str],
        new_id: Callable[[], str],
        measured: Callable[[Selects], Selects],
    ) -> None:
        settings = selection_settings(configuration)
        self._embedder = _embedder(configuration)
        self._selector = _selector(configuration)
        self._embeddings = None if self._embedder is None else AgentEmbeddings(self._embedder, agents, clock)
        prices = {
            model: Price(price.currency, price.input_per_million, price.output_per_million)
            for model, price in configuration.prices.items()
        }
        selection_log = SelectionLog(log, clock, session_ids, new_id)
        stages = Stages(clock, settings, self._embeddings, self._selector)
        select = measured(SelectAgent(agents, stages, selection_log, prices))
        self.verbs = SelectionVerbs(
            RegisterAgent(agents, new_id),
            DeregisterAgent(agents),
            ListAgents(agents),
            AppendTurn(agents, clock, session_ids, settings),
            select,
            AssignStep(agents, select, selection_log),
            Dispatch(agents),
            GetStats(decisions, clock),
            ListDecisions(decisions, session_ids),
        )

    async def close(self) -> None:
        """Let go of the providers' connections and threads."""
        for part in (self._embeddings, self._embedder, self._selector):
            if part is not None:
                await part.close()


def selection_settings(configuration: Configuration) -> SelectionSettings:
    """The settings `selection` as the core has them."""
    given = configuration.selection
    deadlines = StageDeadlines(given.deadlines.shortlist, given.deadlines.rerank, given.deadlines.select)
    return SelectionSettings(given.shortlist_threshold, given.shortlist_size, given.max_history_messages, deadlines)


def _embedder(configuration: Configuration) -> Embedder | None:
    """The configured endpoint; else the model that ships in a package, where the extra `agents` is installed."""
    given = configuration.selection.embeddings
    if given is None:
        return PackagedEmbedder() if PackagedEmbedder.is_installed() else None
    return OpenAiEmbedder(Endpoint(given.base_url, read_secret(given.api_key)), given.base_url, given.model)


def _selector(configuration: Configuration) -> Selector | None:
    given = configuration.selection.chat
    if given is None:
        return None
    return OpenAiSelector(Endpoint(given.base_url, read_secret(given.api_key)), given.model)


def read_secret(source: str | None) -> str:
    """The secret that `env:NAME` or `file:PATH` names; "" when it is not there, and then the endpoint refuses us."""
    kind, _, name = (source or "").partition(":")
    if kind == "env":
        return os.environ.get(name, "")
    if kind == "file":
        try:
            return Path(name).read_text(encoding="utf-8").strip()
        except OSError:
            return ""
    return ""
