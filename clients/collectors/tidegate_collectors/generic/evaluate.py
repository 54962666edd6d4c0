"""Applies a mapping to an answer."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from string import Template
from typing import Any

from tidegate_collectors import times
from tidegate_collectors.account import LIVE_SUCCESS, SUCCESS, Account
from tidegate_collectors.facts import Kind, Reading, Source, failure
from tidegate_collectors.generic.mapping import (
    Amount,
    BalanceRule,
    BlockerRule,
    Condition,
    Generic,
    Instant,
    Length,
    Place,
    QuotaRule,
    Repeated,
    Share,
    StatusRule,
    Text,
)
from tidegate_collectors.generic.metrics import PageMapping
from tidegate_collectors.numeric import number
from tidegate_collectors.payload import Json, Malformed, Response

_LENGTHS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400}


class GenericParser:
    """Reads answers by one mapping. Only the check for progress remembers anything."""

    def __init__(self, mapping: Generic) -> None:
        self._mapping = mapping
        self._page = PageMapping(mapping) if mapping.prometheus or any(rule.health for rule in mapping.emit) else None

    def __call__(self, response: Response, source: Source) -> Reading:
        """Return the facts of an answer, or the collector's error."""
        rule = self._mapping.status.get(response.status)
        if rule:
            return _by_status(rule, response, source)
        if self._page:
            return self._page(response, source)
        live = self._mapping.observe is not None
        if not response.ok and not live:
            return failure(f"the endpoint answered HTTP {response.status}")
        try:
            document = response.document
        except Malformed as error:
            # Of a live response the headers count, whatever its body is; a meter has nothing but its body.
            if not live:
                return failure(f"the endpoint: {error}")
            document = None
        for path in self._mapping.require:
            if path.one(document)[1] is None:
                return failure(f"{path.text} is missing, so this is no answer")
        account = Account(response, source)
        for emit in self._mapping.emit:
            for scene in _scenes(emit.quota or emit.balance or emit.blocker, response, document):
                _apply(account, emit.quota or emit.balance or emit.blocker, scene)
        if live:
            return account.reading(proves=LIVE_SUCCESS if response.ok else frozenset())
        return account.reading(complete=True, proves=SUCCESS, empty="the mapping found no fact")


@dataclass(frozen=True, slots=True)
class Scene:
    """What a rule looks at: the answer, one element of it, the groups of one header."""

    response: Response
    document: Json
    element: Json = None
    groups: dict[str, str] = field(default_factory=dict)
    matched: str = ""

    def raw(self, place: Place) -> tuple[bool, Any]:
        """Return whether the place is there, and its value as it is."""
        if place.omit_if and not self.groups.get(place.omit_if.removeprefix("!")):
            return False, None
        if place.path is not None:
            return place.path.one(self.document, self.element)
        if place.matched:
            return True, self.matched
        if place.header:
            name = self.filled(place.header).lower()
            return name in self.response.headers, self.response.headers.get(name)
        return True, self.filled(place.const) if isinstance(place.const, str) else place.const

    def filled(self, text: str) -> str:
        """Put the header's groups in place of `${name}`."""
        return Template(text).safe_substitute(self.groups)

    def text(self, place: Text | None) -> str:
        """Return a text, empty where there is none."""
        found, value = self.raw(place) if place else (False, None)
        if place is None or not found or not isinstance(value, str | int | Decimal) or isinstance(value, bool):
            return ""
        return place.names.get(str(value), str(value))

    def instant(self, places: tuple[Instant, ...]) -> datetime | None:
        """Return the first of the alternatives that gives a time, on our clock."""
        return next(filter(None, (self._instant(place) for place in places)), None)

    def _instant(self, place: Instant) -> datetime | None:
        value, response = self.raw(place)[1], self.response
        if place.time == "seconds_until":
            return response.after(times.seconds_until(value))
        if place.time == "go_duration":
            return response.after(times.go_duration(value))
        if place.time == "period_utc":
            return times.period_utc(value, response.received)
        readers = {
            "epoch_s": times.epoch_s,
            "epoch_ms": times.epoch_ms,
            "rfc3339": times.rfc3339,
            "date_utc": times.date_utc,
        }
        return response.absolute(readers[place.time](value))

    def holds(self, condition: Condition | None) -> bool:
        """Tell whether a condition holds; none always does, and a value that is missing meets none."""
        if condition is None:
            return True
        if condition.all or condition.any:
            parts = [self.holds(part) for part in (*condition.all, *condition.any)]
            return all(parts) if condition.all else any(parts)
        if condition.path is not None:
            found, value = condition.path.one(self.document, self.element)
        else:
            value = self.response.headers.get(self.filled(condition.header).lower())
            found = value is not None
        return _compare(condition, found, value)


def _scenes(rule: Repeated | None, response: Response, document: Json) -> Iterator[Scene]:
    """Yield what a rule is applied to, in the order of the answer; null elements are passed over."""
    if rule is None:
        return
    if rule.each_header is not None:
        for name, value in response.headers.items():
            match = rule.each_header.fullmatch(name)
            if match:
                groups = {key: text or "" for key, text in match.groupdict().items()}
                yield Scene(response, document, None, groups, value)
    elif rule.each:
        for element in (each for path in rule.each for each in path.all(document)):
            if element is not None:
                yield Scene(response, document, element)
    else:
        yield Scene(response, document, document)


def _apply(account: Account, rule: Repeated | None, scene: Scene) -> None:
    if rule is None or not scene.holds(rule.when):
        return
    account.ttl = rule.ttl
    if isinstance(rule, QuotaRule):
        _quota(account, rule, scene)
    elif isinstance(rule, BalanceRule):
        _balance(account, rule, scene)
    elif isinstance(rule, BlockerRule):
        _blocker(account, rule, scene)


def _quota(account: Account, rule: QuotaRule, scene: Scene) -> None:
    window, scope = _window(rule.window, scene), scene.text(rule.scope)
    model = scene.text(rule.model)
    if not window:
        account.drop("a window without a name or length")
        return
    found, value = scene.raw(rule.value)
    unlimited = rule.unlimited is not None and scene.holds(rule.unlimited)
    percent = None
    if found and value is None and rule.value.null_means != "unknown":
        unlimited = unlimited or rule.value.null_means == "unlimited"
        percent = Decimal(0) if rule.value.sense == "used" else Decimal(100)
    elif found:
        percent = _percent(rule.value, value, scene)
    account.quota(
        window,
        used=percent if rule.value.sense == "used" else None,
        remaining=percent if rule.value.sense == "remaining" else None,
        resets_at=scene.instant(rule.resets_at),
        scope=scope or (f"model:{model}" if model else ""),
        unlimited=unlimited,
    )


def _window(place: Length, scene: Scene) -> str:
    if place.unit is None:
        return scene.text(place)
    length = number(scene.raw(place)[1])
    return "" if length is None else times.window_name(length * _LENGTHS[place.unit]) or ""


def _percent(share: Share, value: object, scene: Scene) -> Decimal | None:
    amount = number(value)
    if amount is None or share.unit == "percent":
        return amount
    if share.unit == "fraction":
        return amount * 100
    limit = number(scene.raw(share.limit)[1]) if share.limit else None
    return 100 * amount / limit if limit and limit > 0 else None


def _balance(account: Account, rule: BalanceRule, scene: Scene) -> None:
    currency = scene.text(rule.currency)
    if not currency:
        account.drop("a balance without a currency")
        return
    found, value = scene.raw(rule.amount)
    unlimited = found and value is None and rule.amount.null_means == "unlimited"
    account.balance(
        currency,
        _scaled(rule.amount, value),
        scope=scene.text(rule.scope),
        unlimited=unlimited,
        usable=scene.holds(rule.available),
        ttl=rule.ttl,
        resets_at=scene.instant(rule.resets_at),
    )


def _scaled(amount: Amount, value: object) -> Decimal | None:
    result = number(value)
    return result if result is None or amount.scale == 1 else result * amount.scale


def _blocker(account: Account, rule: BlockerRule, scene: Scene) -> None:
    reason, model = scene.text(rule.reason), scene.text(rule.model)
    if rule.until == "max_exhausted_reset":
        spent = account.exhausted()
        if spent:
            account.block_exhausted(spent, reason=reason)
        else:
            account.block(rule.kind, reason=reason, model=model)
    elif rule.until == "retry_after":
        account.block(rule.kind, account.backoff(), reason=reason, model=model)
    else:
        account.block(rule.kind, scene.instant(rule.until), reason=reason, model=model)


def _by_status(rule: StatusRule, response: Response, source: Source) -> Reading:
    account = Account(response, source)
    if rule.blocker is not None:
        short = rule.blocker in (Kind.RATE_LIMITED, Kind.OVERLOADED)
        account.block(rule.blocker, account.backoff() if short else None, reason=rule.reason)
        return account.reading()
    after = response.retry_after
    wait = max(after.total_seconds() if after else 0.0, rule.min or 0.0)
    return failure(f"the endpoint answered HTTP {response.status}", retry_after=wait or None)


def _compare(condition: Condition, found: bool, value: object) -> bool:
    given = condition.comparisons
    if "exists" in given:
        return (found and value is not None) == condition.exists
    if not found:
        return False
    if not given:
        return value is True
    if "eq" in given or "ne" in given:
        want = condition.eq if "eq" in given else condition.ne
        return _equal(value, want) == ("eq" in given)
    amount = number(value)
    if amount is None:
        return False
    return bool(
        (condition.gt is not None and amount > Decimal(repr(condition.gt)))
        or (condition.ge is not None and amount >= Decimal(repr(condition.ge)))
        or (condition.lt is not None and amount < Decimal(repr(condition.lt)))
        or (condition.le is not None and amount <= Decimal(repr(condition.le)))
    )


def _equal(value: object, want: object) -> bool:
    """Compare like with like: true is not 1, and 1 is 1.0."""
    if isinstance(value, bool) or isinstance(want, bool) or value is None or want is None:
        return value is want
    if isinstance(value, str) or isinstance(want, str):
        return value == want
    return number(value) == number(want)
