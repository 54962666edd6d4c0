"""Gathers the facts of one answer about one account, and keeps the rules that hold for all of them.

One bad field drops that field, one bad window that window; never the whole answer, and never a zero in its place. A
window whose reset has passed is unknown.
"""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import TypedDict, Unpack

from tidegate_collectors.facts import Balance, Blocker, Fact, Kind, Quota, Reading, Source, failure
from tidegate_collectors.numeric import number
from tidegate_collectors.payload import Response
from tidegate_collectors.times import LONGEST

BACKOFF = timedelta(seconds=30)
"""How long a limit is taken to last when the provider gives no hint."""
SUCCESS = frozenset({Kind.AUTH_FAILED, Kind.ACCOUNT_DISABLED})
"""What a call that succeeded proves to be over (§3.6 of the contract)."""
LIVE_SUCCESS = SUCCESS | {Kind.RATE_LIMITED}
"""What a success on live traffic proves; it refreshes no numbers."""


class Details(TypedDict, total=False):
    """What a blocker may say besides its kind and its end; see `facts.Blocker`."""

    reason: str
    model: str
    scope: str
    upstream: str
    vendor: str
    window: str
    ttl: float


class Account:
    """The facts of one answer in the making."""

    def __init__(self, response: Response, source: Source, *, ttl: float | None = None) -> None:
        self.response = response
        self.source = source
        self.ttl = ttl
        self.facts: list[Fact] = []
        self.dropped: list[str] = []
        self._named: set[tuple[str, str]] = set()

    def drop(self, what: str) -> None:
        """Note what was left out, and why."""
        self.dropped.append(what)

    def quota(
        self,
        window: str,
        *,
        used: object = None,
        remaining: object = None,
        resets_at: datetime | None = None,
        scope: str = "",
        unlimited: bool = False,
        observed_at: datetime | None = None,
    ) -> Quota | None:
        """Add a window by its percentage used or remaining, or as unlimited; None when it had to be dropped.

        `resets_at` is on our clock already (`Response.absolute` and `.after`).
        """
        label = f"{window}/{scope}" if scope else window
        if (window, scope) in self._named:
            return None
        self._named.add((window, scope))
        left, raw_used = _remaining(used, remaining)
        if left is None and not unlimited:
            self.drop(f"{label}: no number")
            return None
        if resets_at is not None and resets_at > self.response.received + LONGEST:
            self.drop(f"{label}: reset is implausibly far away")
            resets_at = None
        if resets_at is not None and resets_at <= self.response.received:
            self.drop(f"{label}: past its reset")
            return None
        fact = Quota(
            provider=self.source.provider,
            ttl=self.ttl,
            window=window,
            remaining=None if unlimited else left,
            unlimited=unlimited,
            resets_at=resets_at,
            scope=scope,
            raw_used=raw_used,
            observed_at=observed_at,
            skew=self.response.skew if resets_at else None,
        )
        self.facts.append(fact)
        return fact

    def balance(
        self,
        currency: str,
        amount: object,
        *,
        scope: str = "",
        unlimited: bool = False,
        usable: bool = True,
        ttl: float | None = None,
        resets_at: datetime | None = None,
    ) -> None:
        """Add a balance; it is available when `usable` and above zero or unlimited."""
        self._named.add(("", scope))
        value = None if unlimited else number(amount)
        if value is None and not unlimited:
            self.drop(f"balance {currency}: no number")
            return
        self.facts.append(
            Balance(
                provider=self.source.provider,
                ttl=ttl or self.ttl,
                currency=currency,
                amount=value,
                unlimited=unlimited,
                available=usable and (value is None or value > 0),
                scope=scope,
                resets_at=resets_at,
            )
        )

    def block(
        self,
        kind: Kind,
        until: datetime | None = None,
        **details: Unpack[Details],
    ) -> None:
        """Add a blocker. `until` is on our clock already; one that has passed blocks nothing."""
        if until is not None and until <= self.response.received:
            self.drop(f"{kind}: its end has passed")
            return
        if until is not None and until > self.response.received + LONGEST:
            until = None
        self.facts.append(
            Blocker(
                provider=self.source.provider,
                kind=kind,
                until=until,
                skew=self.response.skew if until else None,
                **details,
            )
        )

    def backoff(self, hint: datetime | None = None) -> datetime:
        """Return the end of a short limit: what Retry-After says, else `hint`, else 30 s from now."""
        after = self.response.retry_after
        if after:
            return self.response.received + after
        return hint if hint and hint > self.response.received else self.response.received + BACKOFF

    def exhausted(self) -> list[Quota]:
        """Return the windows of the whole account that have nothing left."""
        return [fact for fact in self.facts if isinstance(fact, Quota) and fact.remaining == 0 and not fact.scope]

    def block_exhausted(self, windows: list[Quota] | None = None, *, reason: str = "") -> None:
        """Block until the last of the exhausted windows opens again: all windows bind at once."""
        spent = self.exhausted() if windows is None else windows
        if not spent:
            return
        last = max(spent, key=lambda quota: (quota.resets_at is None, quota.resets_at or self.response.received))
        self.block(Kind.QUOTA_EXHAUSTED, last.resets_at, window=last.window, reason=reason)

    def reading(self, *, complete: bool = False, proves: frozenset[Kind] = frozenset(), empty: str = "") -> Reading:
        """Finish. `empty` is the error of a meter that told no fact; what was left out is one by itself."""
        reasons = [empty, *self.dropped] if empty else self.dropped
        return Reading(
            facts=tuple(self.facts),
            error="" if self.facts else "; ".join(reasons),
            dropped=tuple(self.dropped),
            complete=complete and bool(self.facts),
            named=frozenset(self._named),
            proves=proves,
        )


AUTH_TTL = 600.0
"""Seconds after which a refused credential is to be seen again."""


def refused(response: Response, source: Source, what: str) -> Reading:
    """Return the reading of a meter that failed: 401 is the credential, all else the meter's own trouble."""
    if response.status == 401:
        account = Account(response, source)
        account.block(Kind.AUTH_FAILED, reason="rejected", ttl=AUTH_TTL)
        return account.reading()
    after = response.retry_after
    wait = after.total_seconds() if after is not None else None
    return failure(f"{what} answered HTTP {response.status}", retry_after=wait)


def _remaining(used: object, remaining: object) -> tuple[float | None, float | None]:
    """Return the clamped percentage left, and the raw percentage used where clamping changed it."""
    spent, left = number(used), number(remaining)
    if left is None and spent is not None:
        left = 100 - spent
    if left is None:
        return None, None
    clamped = min(max(left, Decimal()), Decimal(100))
    return float(clamped), None if clamped == left else float(100 - left)
