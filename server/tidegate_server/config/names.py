"""Which names stand for which model: `provider/model`, and a model's alias."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
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


def entries(of: Callable[[], Mapping[str, T]]) -> Iterator[tuple[str, T]]:
    """Yield the entries of a map; none of one that is not readable itself."""
    try:
        yield from of().items()
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
    for provider_name, provider in entries(lambda: configuration.providers):
        yield from as_far_as_readable(_targets_of(provider_name, provider))


def _targets_of(provider_name: str, provider: Provider) -> Iterator[Target]:
    for model_name, model in provider.models.items():
        yield Target(provider_name, model_name, provider, model)


def aliases(every: Iterable[Target]) -> Iterator[tuple[str, Target]]:
    """Yield each alias with its model."""
    for target in every:
        yield from ((alias, target) for alias in as_far_as_readable(target.aliases()))


def index(configuration: Configuration) -> Mapping[str, Target]:
    """Return each model under `provider/model` and under its alias. An alias that is taken stands for none."""
    every = list(targets(configuration))
    count = Counter(alias for alias, _ in aliases(every))
    by_alias = {alias: target for alias, target in aliases(every) if count[alias] == 1}
    return by_alias | {target.full_name: target for target in every}


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
