"""Codex with a ChatGPT login: five shapes of one thing, percent used in windows of a stated length.

- `codex app-server`: account/rateLimits/read, …/updated, camelCase, minutes; the vendor's client holds the token;
- GET /backend-api/wham/usage, undocumented: seconds;
- headers `x-codex-…` of live responses, with the stream events `codex.rate_limits` and usage_limit_reached: minutes;
- ~/.codex/sessions/**/rollout-*.jsonl: minutes, captured when the line was written.

A slot (`primary`, `secondary`) says nothing about a window's length: its stated length does.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidegate_collectors.account import AUTH_TTL, LIVE_SUCCESS, SUCCESS, Account, refused
from tidegate_collectors.facts import Kind, Reading, Source, failure
from tidegate_collectors.numeric import number
from tidegate_collectors.payload import Json, Malformed, Response, decode, mapping, text
from tidegate_collectors.times import epoch_s, rfc3339, seconds_until, window_name

TTL = 900.0
SLOTS = ("primary", "secondary")
_HEADER = re.compile(r"x-(?P<limit>[a-z0-9-]+)-(?P<slot>primary|secondary)-used-percent")
_USUAL = frozenset({"5h", "1d", "7d", "30d"})
_REMAINING_TOLERANCE = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Window:
    """One window of any of the shapes, in one spelling."""

    used: object
    seconds: object
    reset: datetime | None
    """On our clock."""
    observed_at: datetime | None = None

    @property
    def placeholder(self) -> bool:
        """Nothing used of a window without length and reset: no data."""
        return not number(self.used) and not number(self.seconds) and self.reset is None


def codex(response: Response, source: Source) -> Reading:
    """Read whichever of the shapes this is; their fields have nothing in common."""
    tree = response.any_tree
    if response.ok and not tree and response.body.lstrip().startswith(b"{"):
        return rollout(response, source)
    if any(name in tree for name in ("result", "method", "jsonrpc")):
        return app_server(response, source)
    if any(name in tree for name in ("rate_limit", "plan_type", "additional_rate_limits")):
        return usage(response, source)
    if text(mapping(tree.get("payload")).get("type")) == "token_count":
        return rollout(response, source)
    return live(response, source)


# --- app-server -------------------------------------------------------------------------------------------------------


def app_server(response: Response, source: Source) -> Reading:
    """Read the answer to account/rateLimits/read, or the notification account/rateLimits/updated."""
    account = Account(response, source, ttl=TTL)
    try:
        tree = response.tree
    except Malformed as error:
        return failure(f"app-server: {error}")
    if "error" in tree:
        return failure("app-server answered with an error")
    body = mapping(tree.get("result")) or mapping(tree.get("params"))
    limits = mapping(body.get("rateLimitsByLimitId")) or {"codex": body.get("rateLimits")}
    reached = ""
    for limit_id, value in limits.items():
        limit = mapping(value)
        for slot in SLOTS:
            window = mapping(limit.get(slot))
            reset = response.absolute(epoch_s(window.get("resetsAt")))
            _add(
                account, Window(window.get("usedPercent"), _minutes(window.get("windowDurationMins")), reset), limit_id
            )
        if _scope(limit_id) == "":
            reached = text(limit.get("rateLimitReachedType"))
            _credits(account, limit.get("credits"), "hasCredits")
    if reached:
        account.block_exhausted(reason=reached)
    # A notification holds what changed; only an answer names everything.
    return account.reading(complete="result" in tree, proves=SUCCESS, empty="app-server named no window")


# --- the usage endpoint -----------------------------------------------------------------------------------------------


def usage(response: Response, source: Source) -> Reading:
    """Read /backend-api/wham/usage."""
    account = Account(response, source, ttl=TTL)
    if not response.ok:
        return refused(response, source, "the usage endpoint")
    try:
        tree = response.tree
    except Malformed as error:
        return failure(f"the usage endpoint: {error}")
    limit = mapping(tree.get("rate_limit"))
    _usage_windows(account, limit, "codex")
    for extra in map(mapping, _list(tree.get("additional_rate_limits"))):
        name = text(extra.get("limit_name")) or text(extra.get("metered_feature"))
        if name:
            _usage_windows(account, mapping(extra.get("rate_limit")), name)
    _credits(account, tree.get("credits"), "has_credits")
    if limit.get("allowed") is False:
        # `allowed: true` beside `limit_reached: true` is a contradiction: then the numbers stand, and nothing blocks.
        reached = tree.get("rate_limit_reached_type")
        reason = text(mapping(reached).get("type")) or text(reached)
        if account.exhausted():
            account.block_exhausted(reason=reason)
        else:
            account.block(Kind.QUOTA_EXHAUSTED, reason=reason or "not_allowed")
    return account.reading(complete=True, proves=SUCCESS, empty="the usage endpoint named no window")


def _usage_windows(account: Account, limit: dict[str, Json], limit_id: str) -> None:
    for slot in SLOTS:
        window = mapping(limit.get(f"{slot}_window"))
        reset = _reset(account.response, window.get("reset_after_seconds"), window.get("reset_at"))
        _add(account, Window(window.get("used_percent"), window.get("limit_window_seconds"), reset), limit_id)


# --- live responses ---------------------------------------------------------------------------------------------------


def live(response: Response, source: Source) -> Reading:
    """Read a live response: the windows of its headers or stream events, and the error that says one is spent."""
    account = Account(response, source, ttl=TTL)
    _header_windows(account, response.headers)
    blocked = False
    for event in [response.any_tree] if response.any_tree else list(response.events()):
        if text(event.get("type")) == "codex.rate_limits":
            _event_windows(account, mapping(event.get("rate_limits")))
        _header_windows(account, {name.lower(): text(value) for name, value in mapping(event.get("headers")).items()})
        error = mapping(event.get("error")) or mapping(mapping(event.get("response")).get("error"))
        if text(error.get("type")) == "usage_limit_reached" or text(error.get("code")) == "usage_limit_reached":
            blocked = True
            _spent(account, error)
    if response.ok:
        return account.reading(proves=frozenset() if blocked else LIVE_SUCCESS)
    if response.status == 429 and not blocked:
        account.block(Kind.RATE_LIMITED, account.backoff(), model=source.model)
    elif response.status == 401:
        account.block(Kind.AUTH_FAILED, reason="rejected", ttl=AUTH_TTL)
    return account.reading()


def _spent(account: Account, error: dict[str, Json]) -> None:
    """Block until the spent windows open again, or, where none is known, until the error's own reset."""
    if account.exhausted():
        account.block_exhausted()
    else:
        reset = _reset(account.response, error.get("resets_in_seconds"), error.get("resets_at"))
        account.block(Kind.QUOTA_EXHAUSTED, reset or account.response.after(account.response.retry_after))


def _header_windows(account: Account, headers: Mapping[str, str]) -> None:
    for name in headers:
        match = _HEADER.fullmatch(name)
        if match:
            stem = name.removesuffix("used-percent")
            reset = _reset(account.response, headers.get(stem + "reset-after-seconds"), headers.get(stem + "reset-at"))
            length = _minutes(headers.get(stem + "window-minutes"))
            _add(account, Window(headers[name], length, reset), match["limit"])
    flags = {
        flag: headers.get(f"x-codex-credits-{flag}", "").lower() == "true" for flag in ("has-credits", "unlimited")
    }
    _credits(account, {**flags, "balance": headers.get("x-codex-credits-balance")}, "has-credits")


def _event_windows(account: Account, limits: dict[str, Json]) -> None:
    for slot in SLOTS:
        window = mapping(limits.get(slot))
        reset = _reset(account.response, window.get("reset_after_seconds"), window.get("reset_at"))
        _add(account, Window(window.get("used_percent"), _minutes(window.get("window_minutes")), reset), "codex")


# --- rollout files ----------------------------------------------------------------------------------------------------


def rollout(response: Response, source: Source) -> Reading:
    """Read lines of rollout files. Of two that disagree the newest reset wins, then the newest line.

    The lines carry no account: those from before the option `since` (RFC 3339, the present login) are left out.
    """
    account = Account(response, source, ttl=TTL)
    since = rfc3339(source.options.get("since"))
    best: dict[tuple[str, str], Window] = {}
    newest: tuple[datetime, str] | None = None
    for written, limits in _lines(response):
        if since and written < since:
            account.drop("a line from before the present login")
            continue
        limit_id = text(limits.get("limit_id")) or "codex"
        if not _scope(limit_id) and (newest is None or written >= newest[0]):
            newest = written, text(limits.get("rate_limit_reached_type"))
        for slot in SLOTS:
            window = _rollout_window(mapping(limits.get(slot)), written)
            name = window_name(window.seconds)
            if name and not window.placeholder and _newer(window, best.get((name, limit_id))):
                best[name, limit_id] = window
    for (_, limit_id), window in best.items():
        _add(account, window, limit_id)
    if newest and newest[1]:
        account.block_exhausted(reason=newest[1])
    return account.reading(empty="the rollout lines hold no rate limits")


def _lines(response: Response) -> Iterator[tuple[datetime, dict[str, Json]]]:
    for line in response.text.splitlines():
        try:
            entry = mapping(decode(line.encode()))
        except Malformed:
            continue
        written, limits = _timestamp(entry.get("timestamp")), mapping(mapping(entry.get("payload")).get("rate_limits"))
        # A line that is younger than we are was written by another clock; it is as old as now.
        if written and limits:
            yield min(written, response.received), limits


def _rollout_window(window: dict[str, Json], written: datetime) -> Window:
    after = seconds_until(window.get("resets_in_seconds"))
    reset = written + after if after is not None else epoch_s(window.get("resets_at"))
    return Window(window.get("used_percent"), _minutes(window.get("window_minutes")), reset, written)


def _newer(window: Window, other: Window | None) -> bool:
    return other is None or _age(window) > _age(other)


def _age(window: Window) -> tuple[bool, datetime | None, datetime | None]:
    return window.reset is not None, window.reset, window.observed_at


def _timestamp(value: Json) -> datetime | None:
    """Read a line's own time exactly: it orders lines within one second."""
    whole = rfc3339(value)
    return datetime.fromisoformat(text(value)).astimezone(whole.tzinfo) if whole else None


# --- what they share --------------------------------------------------------------------------------------------------


def _add(account: Account, window: Window, limit_id: str) -> None:
    if window.used is None:
        return
    if window.placeholder:
        account.drop(f"{limit_id}: a placeholder, no window")
        return
    name = window_name(window.seconds)
    if name is None:
        account.drop(f"{limit_id}: a window without a length")
        return
    if name not in _USUAL and _is_time_left(window, account.response.received):
        account.drop(f"{limit_id}: states its time left in place of its length")
        return
    account.quota(
        name, used=window.used, resets_at=window.reset, scope=_scope(limit_id), observed_at=window.observed_at
    )


def _is_time_left(window: Window, now: datetime) -> bool:
    """Tell the mistake of old command lines, which put the remaining minutes where the length belongs."""
    length = seconds_until(window.seconds)
    return window.reset is not None and length is not None and abs(window.reset - now - length) <= _REMAINING_TOLERANCE


def _reset(response: Response, after: object, at: object) -> datetime | None:
    """Return a reset on our clock: the relative one where there is one, since it needs no common clock."""
    return response.after(seconds_until(after)) or response.absolute(epoch_s(at))


def _scope(limit_id: str) -> str:
    """Return the scope of a limit: the account's own is called `codex`."""
    return "" if limit_id == "codex" else f"limit:{limit_id}"


def _minutes(value: object) -> object:
    minutes = number(value)
    return None if minutes is None else minutes * 60


def _credits(account: Account, value: Json, flag: str) -> None:
    """Add bought credits, which are no currency, where the account has any."""
    found = mapping(value)
    if found.get("unlimited") is True:
        account.balance("credits", None, scope="credits", unlimited=True)
    elif found.get(flag) is True:
        account.balance("credits", found.get("balance"), scope="credits")


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
