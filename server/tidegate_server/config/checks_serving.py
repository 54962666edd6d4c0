"""The checks of where and to whom the server answers: addresses, stores, identities (§12 and §13 of the contract)."""

from collections.abc import Callable, Iterator

from tidegate_server.config.faults import Fault, Path, meant
from tidegate_server.config.model import Configuration
from tidegate_server.config.names import as_far_as_readable
from tidegate_server.config.scalars import quoted
from tidegate_server.config.serving import IDENTITY_KEYS, Identity
from tidegate_server.config.sources import Address


def _addresses(configuration: Configuration) -> Iterator[tuple[Path, Address]]:
    """Yield every address that is listened on, with its place."""
    for places in (_main, _admin, _health):
        yield from as_far_as_readable(places(configuration))


def _main(configuration: Configuration) -> Iterator[tuple[Path, Address]]:
    for position, address in enumerate(configuration.listen):
        yield ("listen", position), Address(*address)


def _admin(configuration: Configuration) -> Iterator[tuple[Path, Address]]:
    yield ("admin", "listen"), Address(*configuration.admin.listen)


def _health(configuration: Configuration) -> Iterator[tuple[Path, Address]]:
    if configuration.health is not None:
        yield ("health", "listen"), Address(*configuration.health.listen)


def _something_listens(configuration: Configuration) -> Iterator[Fault]:
    if len(configuration.listen) == 0:
        yield Fault(("listen",), "must name at least one address")


def _addresses_once(configuration: Configuration) -> Iterator[Fault]:
    taken: set[Address] = set()
    for path, address in _addresses(configuration):
        if address in taken and (address.path or address.port):
            yield Fault(path, f"is taken: the server listens on {address} already")
        taken.add(address)


def _exposure(configuration: Configuration) -> Iterator[Fault]:
    """Another address than loopback needs TLS or consent. The health listener is plaintext on purpose, so not it."""
    if configuration.tls is not None or configuration.insecure:
        return
    for places in (_main, _admin):
        for path, address in as_far_as_readable(places(configuration)):
            if not address.is_loopback:
                yield Fault(path, f"{address} is reachable from other machines: it needs tls, or insecure: true")


def _shared_keys(configuration: Configuration) -> Iterator[Fault]:
    text = "is required with stores: every replica must have the same key"
    if configuration.is_shared and configuration.keys.pins is None:
        yield Fault(("keys", "pins"), text)
    if configuration.is_shared and len(configuration.keys.tracestate) == 0:
        yield Fault(("keys", "tracestate"), text)


def _identities(configuration: Configuration) -> Iterator[Fault]:
    for position, identity in enumerate(configuration.identities):
        for check in (_shows_itself_once, _certificate_can_be_shown, _providers_by_role, _providers_exist):
            yield from as_far_as_readable(check(configuration, identity, ("identities", position)))


def _shows_itself_once(_configuration: Configuration, identity: Identity, path: Path) -> Iterator[Fault]:
    given = [key for key, field in IDENTITY_KEYS.items() if getattr(identity, field) is not None]
    if len(given) != 1:
        has = " and ".join(given) or "none"
        yield Fault(path, f"must have exactly one of {', '.join(IDENTITY_KEYS)}, and has {has}")


def _certificate_can_be_shown(configuration: Configuration, identity: Identity, path: Path) -> Iterator[Fault]:
    if configuration.tls is not None and configuration.tls.client_ca is not None:
        return
    for key, field in IDENTITY_KEYS.items():
        if field != "token_sha256" and getattr(identity, field) is not None:
            yield Fault((*path, key), "is shown by a client's certificate, which needs tls.clientCa")


def _providers_by_role(_configuration: Configuration, identity: Identity, path: Path) -> Iterator[Fault]:
    if identity.role == "collector" and len(identity.providers) == 0:
        yield Fault((*path, "providers"), "is required for a collector: the providers that it may report on")
    if identity.role != "collector" and len(identity.providers) > 0:
        yield Fault((*path, "providers"), f"is for collectors only, not for the role {identity.role}")


def _providers_exist(configuration: Configuration, identity: Identity, path: Path) -> Iterator[Fault]:
    for position, provider in enumerate(identity.providers):
        if provider not in configuration.providers:
            near = meant(provider, configuration.providers)
            yield Fault((*path, "providers", position), f"no provider is called {quoted(provider)}{near}")


def _identities_once(configuration: Configuration) -> Iterator[Fault]:
    taken: dict[tuple[str, str], int] = {}
    for position, identity in enumerate(configuration.identities):
        for key, field in {"name": "name", **IDENTITY_KEYS}.items():
            yield from as_far_as_readable(_once(taken, position, key, getattr(identity, field)))


def _once(taken: dict[tuple[str, str], int], position: int, key: str, value: str | None) -> Iterator[Fault]:
    if value is not None:
        first = taken.setdefault((key, value), position)
        if first != position:
            yield Fault(("identities", position, key), f"is the same as identities[{first}].{key}; it must be unique")


SERVING_CHECKS: tuple[Callable[[Configuration], Iterator[Fault]], ...] = (
    _something_listens,
    _addresses_once,
    _exposure,
    _shared_keys,
    _identities,
    _identities_once,
)
