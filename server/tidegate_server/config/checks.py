"""What is checked of a configuration as a whole: every check of §2 of the contract that looks at more than one value.

A check is a generator of faults, written for sound values. One that meets a value with a fault of its own ends there,
so that all the others are still made.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tidegate_server.config.checks_serving import SERVING_CHECKS
from tidegate_server.config.faults import Fault, Path, Tree, keys_at, meant
from tidegate_server.config.model import Configuration
from tidegate_server.config.names import Target, aliases, as_far_as_readable, entries, index, targets, written_names
from tidegate_server.config.routing import RouteSettings
from tidegate_server.config.scalars import BadValue, quoted, read_name
from tidegate_server.core.model import Tier

ROUTES: Path = ("managedRouting", "routes")


class Subject(NamedTuple):
    """A route under check. `known` are the sound models by name, `written` all names of models, sound or not."""

    configuration: Configuration
    path: Path
    route: RouteSettings
    known: Mapping[str, Target]
    written: frozenset[str]

    def candidates(self) -> Iterator[tuple[Path, Target]]:
        """Yield the sound candidates with their places."""
        for position, spelled in enumerate(self.route.candidates):
            if spelled in self.known:
                yield (*self.path, "candidates", position), self.known[spelled]


RouteCheck: TypeAlias = Callable[[Subject], Iterator[Fault]]


def check(configuration: Configuration, tree: Tree) -> Iterator[Fault]:
    """Yield the faults of a configuration that was read from `tree`; its values were checked one by one before."""
    yield from _keys(tree)
    for whole in (_aliases, _engine_names, _route_names, *SERVING_CHECKS):
        yield from as_far_as_readable(whole(configuration))
    known, written = index(configuration), frozenset(written_names(tree))
    for name, route in entries(lambda: configuration.managed_routing.routes):
        subject = Subject(configuration, (*ROUTES, name), route, known, written)
        for one in ROUTE_CHECKS:
            yield from as_far_as_readable(one(subject))


def _keys(tree: Tree) -> Iterator[Fault]:
    for path, key in _written_keys(tree):
        try:
            read_name(key)
        except BadValue as bad:
            yield Fault((*path, key), str(bad))
        if path == ("providers",) and "/" in key:
            yield Fault((*path, key), 'must have no "/", for a candidate is spelled provider/model')


def _written_keys(tree: Tree) -> Iterator[tuple[Path, str]]:
    paths: list[Path] = [("providers",), ROUTES, ("flow", "profiles"), ("prices",)]
    paths += [("providers", provider, "models") for provider in keys_at(tree, ("providers",))]
    for path in paths:
        yield from ((path, key) for key in keys_at(tree, path))


def _aliases(configuration: Configuration) -> Iterator[Fault]:
    every = list(targets(configuration))
    models = {target.full_name for target in every}
    taken: dict[str, Target] = {}
    for alias, target in aliases(every):
        if alias in models:
            yield Fault((*target.path, "alias"), f"is taken: a model is called {quoted(alias)}")
        elif alias in taken:
            yield Fault((*target.path, "alias"), f"is taken: it is the alias of {quoted(taken[alias].full_name)}")
        taken.setdefault(alias, target)


def _engine_names(configuration: Configuration) -> Iterator[Fault]:
    taken: dict[tuple[str, str], str] = {(t.provider_name, t.model_name): t.model_name for t in targets(configuration)}
    for target in targets(configuration):
        for position, engine_name in as_far_as_readable(target.engine_names()):
            owner = taken.setdefault((target.provider_name, engine_name), target.model_name)
            if owner != target.model_name:
                text = f"is taken: {quoted(engine_name)} stands for the model {quoted(owner)} of this provider"
                yield Fault((*target.path, "engineNames", position), text)


def _route_names(configuration: Configuration) -> Iterator[Fault]:
    every = list(targets(configuration))
    names = {name for target in every for name in (target.model_name, target.full_name)}
    names |= {alias for alias, _ in aliases(every)}
    for route in configuration.managed_routing.routes:
        if route in names:
            yield Fault((*ROUTES, route), "is a model's name or alias, too; a route needs a name of its own")


def _candidates_exist(subject: Subject) -> Iterator[Fault]:
    if len(subject.route.candidates) == 0:
        yield Fault((*subject.path, "candidates"), "must name at least one candidate")
    for position, spelled in enumerate(subject.route.candidates):
        if spelled not in subject.written:
            near = meant(spelled, subject.written) or _bare_name_hint(spelled, subject.known)
            text = f"no model under providers is called {quoted(spelled)}, by provider/model or by alias{near}"
            yield Fault((*subject.path, "candidates", position), text)


def _bare_name_hint(spelled: str, known: Mapping[str, Target]) -> str:
    full = sorted({target.full_name for target in known.values() if target.model_name == spelled})
    return f"; did you mean {quoted(full[0])}?" if full else ""


def _candidates_once(subject: Subject) -> Iterator[Fault]:
    first: dict[str, Path] = {}
    for position, spelled in enumerate(subject.route.candidates):
        name = subject.known[spelled].full_name if spelled in subject.known else spelled
        if name in first:
            text = f"is listed already, as candidates[{first[name][-1]}]"
            yield Fault((*subject.path, "candidates", position), text)
        first.setdefault(name, (position,))


def _windows(subject: Subject) -> Iterator[Fault]:
    route = subject.route
    for place, target in subject.candidates():
        yield from as_far_as_readable(_window_of(route, place, target))


def _window_of(route: RouteSettings, place: Path, target: Target) -> Iterator[Fault]:
    has, needs = target.model.context_window, route.context_window
    if has < needs:
        yield Fault(place, f"{quoted(target.full_name)} has a contextWindow of {has}, less than the route's {needs}")


def _compaction(subject: Subject) -> Iterator[Fault]:
    limit, window = subject.route.auto_compact_token_limit, subject.route.context_window
    if limit is not None and limit * 10 > window * 9:
        text = f"must be at most 90 % of contextWindow, which is {window * 9 // 10}, not {limit}"
        yield Fault((*subject.path, "autoCompactTokenLimit"), text)


def _efforts(subject: Subject) -> Iterator[Fault]:
    for candidate, effort in subject.route.candidate_reasoning_efforts.items():
        yield from as_far_as_readable(_effort_of(subject, candidate, effort))


def _effort_of(subject: Subject, candidate: str, effort: str) -> Iterator[Fault]:
    path = (*subject.path, "candidateReasoningEfforts", candidate)
    if candidate not in subject.route.candidates:
        known = meant(candidate, subject.route.candidates)
        yield Fault(path, f"is not one of the route's candidates, as they are spelled there{known}")
    elif candidate in subject.known:
        supported = subject.known[candidate].model.reasoning_efforts
        if effort not in supported:
            allowed = ", ".join(supported) or "none"
            yield Fault(
                path, f"{quoted(candidate)} does not support the effort {quoted(effort)}; it supports {allowed}"
            )


def _strict_purposes(subject: Subject) -> Iterator[Fault]:
    purpose = subject.route.purpose
    if purpose == "strong" or purpose == "review":  # noqa: PLR1714 - an unreadable purpose compares, it does not hash
        yield from as_far_as_readable(_no_flash_preference(subject))
        for place, target in subject.candidates():
            yield from as_far_as_readable(_not_local(purpose, place, target))


def _no_flash_preference(subject: Subject) -> Iterator[Fault]:
    if subject.route.prefer_paid_flash:
        text = f"must not be true on a route whose purpose is {subject.route.purpose}"
        yield Fault((*subject.path, "preferPaidFlash"), text)


def _not_local(purpose: str, place: Path, target: Target) -> Iterator[Fault]:
    if target.provider.kind == Tier.LOCAL:
        yield Fault(place, f"{quoted(target.full_name)} is local; a route whose purpose is {purpose} has no local one")


def _preference_needs_paid(subject: Subject) -> Iterator[Fault]:
    if subject.route.prefer_paid_flash and not subject.route.allow_paid:
        yield Fault((*subject.path, "preferPaidFlash"), "needs allowPaid: true")


def _paid_models(subject: Subject) -> Iterator[Fault]:
    for place, target in subject.candidates():
        yield from as_far_as_readable(_paid_model(subject, place, target))


def _paid_model(subject: Subject, place: Path, target: Target) -> Iterator[Fault]:
    allowed = subject.configuration.managed_routing.paid_models
    if target.provider.kind == Tier.PAID and target.model_name not in allowed:
        names = ", ".join(map(quoted, allowed)) or "none"
        text = f"{quoted(target.full_name)} is paid, and its model is not in managedRouting.paidModels ({names})"
        yield Fault(place, text)


def _paid_needs_subscription(subject: Subject) -> Iterator[Fault]:
    route = subject.route
    if not route.allow_paid or route.prefer_paid_flash or len(route.candidates) == 0:
        return
    if not all(spelled in subject.known for spelled in route.candidates):
        return  # what is not known may be meant as a subscription, and has a fault of its own
    if not any(target.provider.kind == Tier.SUBSCRIPTION for _, target in subject.candidates()):
        text = "needs a subscription candidate, whose blockers authorize paying; or preferPaidFlash: true"
        yield Fault((*subject.path, "allowPaid"), text)


ROUTE_CHECKS: tuple[RouteCheck, ...] = (
    _candidates_exist,
    _candidates_once,
    _windows,
    _compaction,
    _efforts,
    _strict_purposes,
    _preference_needs_paid,
    _paid_models,
    _paid_needs_subscription,
)
