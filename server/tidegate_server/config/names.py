"""Which names stand for which model: `provider/model`, and a model's alias."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from tidegate_server.config.base import Unreadable
from tidegate_server.config.faults import Path, Tree, at, keys_at
from tidegate_server.config.model import Configuration
from tidegate_server.config.routing import Model, Provider

T = TypeVar("T")


def as_far_as_readable(items: Iterator[T]) -> Iterator[T]:
    """Yield `items` up to the first that rests on a value with a fault of its own."""
    try:
        yield from items
    except Unreadable:
        return


class Target(NamedTuple):
    """A configured model."""

    provider_name: str
    model_name: str
    provider: Provider
    model: Model

    @property
    def full_name(self) -> str:
        """`provider/model`."""
        return f"{self.provider_name}/{self.model_name}"

    @property
    def path(self) -> Path:
        """Where it stands in the file."""
        return ("providers", self.provider_name, "models", self.model_name)

    def aliases(self) -> Iterator[str]:
        """Yield its alias, if it has one."""
        if self.model.alias is not None:
            yield f"{self.model.alias}"

    def engine_names(self) -> Iterator[tuple[int, str]]:
        """Yield the other names by which its engine reports it, with their places."""
        yield from enumerate(self.model.engine_names)


def targets(configuration: Configuration) -> Iterator[Target]:
    """Yield each configured model in the order of the file."""
    for provider_name, provider in as_far_as_readable(iter(configuration.providers.items())):
        for model_name, model in as_far_as_readable(iter(provider.models.items())):
            yield Target(provider_name, model_name, provider, model)


def aliases(every: Iterable[Target]) -> Iterator[tuple[str, Target]]:
    """Yield each alias with its model."""
    for target in every:
        yield from ((alias, target) for alias in as_far_as_readable(target.aliases()))


def index(configuration: Configuration) -> Mapping[str, Target]:
    """Return each model under `provider/model` and under its alias; of clashing names the first one counts."""
    every = list(targets(configuration))
    found = {target.full_name: target for target in every}
    for alias, target in aliases(every):
        found.setdefault(alias, target)
    return found


def written_names(tree: Tree) -> set[str]:
    """Return every name that a candidate may have by what is written, sound or not.

    A candidate that names a model with a fault is there all the same: one mistake is reported once.
    """
    names: set[str] = set()
    for provider in keys_at(tree, ("providers",)):
        for model in keys_at(tree, ("providers", provider, "models")):
            names.add(f"{provider}/{model}")
            if isinstance(alias := at(tree, ("providers", provider, "models", model, "alias")), str):
                names.add(alias)
    return names
