"""Catalog: what a caller may ask for (§7 of the contract)."""

from collections.abc import Sequence

from tidegate_server.core.policy import CatalogEntry
from tidegate_server.usecases.policies import Policies


class Catalog:
    """Fixed models always; routes, which are internal worker policies, only when hidden ones are asked for."""

    def __init__(self, policies: Policies, features: Sequence[str]) -> None:
        self._policies = policies
        self.features = tuple(features)

    def __call__(self, include_hidden: bool) -> Sequence[CatalogEntry]:
        """The rows, fixed models first."""
        return [entry for entry in self._policies.current.catalog if include_hidden or not entry.managed]
