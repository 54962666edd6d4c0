"""Claude subscriptions: three sources, two scales.

- headers of every inference response: utilization as a fraction used (0 to 1, and beyond), resets as epoch seconds;
- /api/oauth/usage, which Anthropic does not document: utilization as a percentage used, resets as RFC 3339;
- the status line of Claude Code (2.1.80 and later): `used_percentage`, resets as epoch seconds, no credential at all.

All windows bind at once. `allowed_warning` is no block, and `overage-status: rejected` stands on nearly every response.
"""

import re
from decimal import Decimal

from tidegate_collectors.account import LIVE_SUCCESS, SUCCESS, Account
from tidegate_collectors.facts import Kind, Quota, Reading, Source, failure
from tidegate_collectors.numeric import number
from tidegate_collectors.payload import Json, Malformed, Response, items, mapping, text
from tidegate_collectors.providers import anthropic
from tidegate_collectors.times import epoch_s, rfc3339

TTL = 900.0
EXTRA_TTL = 600.0
USAGE_BACKOFF = 300.0
"""Seconds after which the usage endpoint is asked again at the earliest; its own `retry-after: 0` is not true."""

_HEADER = re.compile(r"anthropic-ratelimit-unified-(?P<window>\d+[mhd])(?P<claim>_[a-z0-9_]+)?-utilization")
_UNIFIED = "anthropic-ratelimit-unified-"
_WINDOWS = {"five_hour": ("5h", ""), "seven_day": ("7d", "")}
_KINDS = {"session": "5h", "weekly_all": "7d", "weekly_scoped": "7d"}
_MODELS = ("opus", "sonnet", "haiku")


def claude(response: Response, source: Source) -> Reading:
    """Read whichever of the three sources this is; their fields have nothing in common."""
    if any(name.startswith(_UNIFIED) for name in response.headers):
        return headers(response, source)
    if "rate_limits" in response.any_tree:
        return statusline(response, source)
    if response.status == 529 or (response.status == 400 and response.any_tree):
        return anthropic.anthropic(response, source)
    return usage(response, source)


# --- headers ----------------------------------------------------------------------------------------------------------


def headers(response: Response, source: Source) -> Reading:
    """Read the headers of an inference response."""
    account = Account(response, source, ttl=TTL)
    rejected: list[Quota] = []
    for name, value in response.headers.items():
        match = _HEADER.fullmatch(name)
        if not match:
            continue
        stem = name.removesuffix("utilization")
        used = number(value)
        quota = account.quota(
            match["window"],
            used=None if used is None else used * 100,
            resets_at=response.absolute(epoch_s(response.headers.get(stem + "reset"))),
            scope=f"claim:{match['window']}{match['claim']}" if match["claim"] else "",
        )
        if quota and (response.headers.get(stem + "status") == "rejected" or quota.remaining == 0):
            rejected.append(quota)
    if response.ok:
        blocked = anthropic.live_errors(account, source.model or anthropic.model_of(response))
        return account.reading(proves=frozenset() if blocked else LIVE_SUCCESS)
    if response.status == 429:
        _limited(account, rejected)
    else:
        anthropic.live_errors(account, source.model)
    return account.reading()


def _limited(account: Account, rejected: list[Quota]) -> None:
    """Tell the window that is spent from a burst: a 429 while every window says `allowed` is short."""
    whole = [quota for quota in rejected if not quota.scope]
    if whole:
        account.block_exhausted(whole)
    elif account.response.headers.get(_UNIFIED + "status") == "rejected":
        reset = account.response.absolute(epoch_s(account.response.headers.get(_UNIFIED + "reset")))
        account.block(Kind.QUOTA_EXHAUSTED, reset or account.backoff())
    else:
        account.block(Kind.RATE_LIMITED, account.backoff(), model=account.source.model)


# --- the usage endpoint -----------------------------------------------------------------------------------------------


def usage(response: Response, source: Source) -> Reading:
    """Read /api/oauth/usage. That it is throttled says nothing about the account."""
    account = Account(response, source, ttl=TTL)
    if response.status == 401:
        # With `own_token` the endpoint is read by another credential than the gateway's, whose state it cannot tell.
        if source.options.get("own_token"):
            return failure("the usage endpoint refused the collector's own token")
        anthropic.auth_failed(account, text(mapping(response.any_tree.get("error")).get("message")))
        return account.reading()
    if not response.ok:
        after = response.retry_after
        wait = max(after.total_seconds() if after else 0.0, USAGE_BACKOFF)
        return failure(f"the usage endpoint answered HTTP {response.status}", retry_after=wait)
    try:
        tree = response.tree
    except Malformed as error:
        return failure(f"the usage endpoint: {error}")
    for name, window in tree.items():
        place = _place(name)
        if place and isinstance(window, dict):
            _window(account, *place, used=window.get("utilization"), reset=window.get("resets_at"))
    for limit in map(mapping, items(tree.get("limits"))):
        window_length = _KINDS.get(text(limit.get("kind")))
        if window_length:
            _window(account, window_length, _scope(limit), used=limit.get("percent"), reset=limit.get("resets_at"))
    _extra_usage(account, tree)
    account.block_exhausted()
    return account.reading(complete=True, proves=SUCCESS, empty="the usage endpoint named no window")


def _place(name: str) -> tuple[str, str] | None:
    """Return window and scope of a top-level member, None of one that is no window."""
    if name in _WINDOWS:
        return _WINDOWS[name]
    part = name.removeprefix("seven_day_")
    if part == name:
        return None
    return "7d", f"model:{part.capitalize()}" if part in _MODELS else part


def _scope(limit: dict[str, Json]) -> str:
    scope = mapping(limit.get("scope"))
    model = mapping(scope.get("model"))
    name = text(model.get("display_name")) or text(model.get("id"))
    surface = text(scope.get("surface"))
    return f"model:{name}" if name else f"surface:{surface}" if surface else ""


def _window(account: Account, window: str, scope: str, *, used: Json, reset: Json) -> None:
    """Add a window. One that has not begun has no reset: it starts with its first use."""
    if used is None and reset is None:
        return
    account.quota(window, used=used, resets_at=account.response.absolute(rfc3339(reset)), scope=scope)


def _extra_usage(account: Account, tree: dict[str, Json]) -> None:
    """Add the pay-as-you-go budget: amounts in minor units, no limit given or a limit of 0 meaning unlimited."""
    extra = mapping(tree.get("extra_usage"))
    if extra.get("is_enabled") is not True:
        return
    spend = mapping(extra.get("spend")) or mapping(tree.get("spend"))
    used, cap = mapping(spend.get("used")), mapping(spend.get("limit"))
    exponent = number(used.get("exponent"))
    spent = number(used.get("amount_minor")) if used else number(extra.get("used_credits"))
    limit = number(cap.get("amount_minor")) if cap else number(extra.get("monthly_limit"))
    places = int(exponent) if exponent is not None and 0 <= exponent <= 6 else 2
    currency = text(used.get("currency")) or text(extra.get("currency")) or "USD"
    unit = Decimal(1).scaleb(-places)
    left = None if limit is None or spent is None else ((limit - spent) * unit).quantize(unit)
    account.balance(currency, left, scope="extra_usage", unlimited=not limit, ttl=EXTRA_TTL)


# --- the status line --------------------------------------------------------------------------------------------------


def statusline(response: Response, source: Source) -> Reading:
    """Read what Claude Code hands to a status-line command."""
    account = Account(response, source, ttl=TTL)
    try:
        limits = mapping(response.tree.get("rate_limits"))
    except Malformed as error:
        return failure(f"the status line: {error}")
    for name, (window, scope) in _WINDOWS.items():
        limit = limits.get(name)
        if isinstance(limit, dict):
            reset = response.absolute(epoch_s(limit.get("resets_at")))
            account.quota(window, used=limit.get("used_percentage"), resets_at=reset, scope=scope)
    return account.reading(empty="the status line holds no rate limits")
