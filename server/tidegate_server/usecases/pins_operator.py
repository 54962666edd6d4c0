"""What operators do with pins: list, retire, verify (§5 of the contract)."""

from tidegate_server.core.model import Caller
from tidegate_server.errors import FieldViolation, InvalidRequest, NotFound
from tidegate_server.ports import Clock, PinCensus, PinFilter, PinPage, PinStore

DEFAULT_PAGE, LONGEST_PAGE = 100, 1000


def page_limit(page_size: int) -> int:
    """The page size that counts: 0 means 100, at most 1 000; a negative one is InvalidRequest."""
    if page_size < 0:
        raise InvalidRequest([FieldViolation("page_size", "is negative")])
    return min(page_size or DEFAULT_PAGE, LONGEST_PAGE)


def hex_bytes(text: str, field: str) -> bytes:
    """An id or a place in a listing, as hexadecimal digits; InvalidRequest names `field` when it is none."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidRequest([FieldViolation(field, "is no hexadecimal text from this server")]) from None


class ListPins:
    """The pins of the caller's namespace, in the order of their ids."""

    def __init__(self, pins: PinStore) -> None:
        self._pins = pins

    async def __call__(
        self, caller: Caller, *, route: str, provider: str, pin_id: str, page_size: int, page_token: str
    ) -> PinPage:
        """Raises InvalidRequest for a negative page size, an id or a token that is none; StoreUnavailable."""
        which = PinFilter(caller.namespace, route, provider, hex_bytes(pin_id, "pin_id"))
        after = hex_bytes(page_token, "page_token")
        return await self._pins.list(which, after=after, limit=page_limit(page_size))


class RetirePins:
    """Retire pins for good: each leaves a tombstone and an audit line."""

    def __init__(self, pins: PinStore, clock: Clock) -> None:
        self._pins = pins
        self._clock = clock

    async def __call__(self, caller: Caller, which: PinFilter, *, why: str, dry_run: bool) -> int:
        """How many were retired. Raises InvalidRequest without a selection or a reason, NotFound for an unknown id."""
        violations = []
        if not (which.pin_id or which.provider or which.route):
            violations.append(FieldViolation("which", "name a pin_id, a provider or a model"))
        if not why.strip():
            violations.append(FieldViolation("reason", "is missing; it is kept in the audit line"))
        if violations:
            raise InvalidRequest(violations)
        which = which._replace(namespace=caller.namespace)
        if which.pin_id and await self._pins.get(which.pin_id) is None:
            raise NotFound("pin", which.pin_id.hex())
        when = self._clock.wall()
        return await self._pins.retire(which, who=caller.name or "local", when=when, why=why, dry_run=dry_run)


class VerifyPins:
    """Check every row against its checksum."""

    def __init__(self, pins: PinStore) -> None:
        self._pins = pins

    async def __call__(self) -> PinCensus:
        """Raises StoreUnavailable."""
        return await self._pins.verify()
