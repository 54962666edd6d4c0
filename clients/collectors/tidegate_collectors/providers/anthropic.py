"""Anthropic's API with a key: rate-limit headers and errors of live responses.

429 is the account's own limit, 529 the provider's trouble, which all its accounts share. Money and disabled accounts
hide behind 400 and are told apart by their words alone.
"""

import re
from collections.abc import Iterator

from tidegate_collectors.account import AUTH_TTL, LIVE_SUCCESS, Account
from tidegate_collectors.facts import Kind, Reading, Source
from tidegate_collectors.numeric import number
from tidegate_collectors.payload import Json, Response, mapping, text
from tidegate_collectors.times import rfc3339

TTL = 60.0
BUCKETS = ("requests", "tokens", "input-tokens", "output-tokens")
VENDOR = "anthropic"

_DISABLED = re.compile(r"\b(organi[sz]ation|account)\b.*\b(disabled|deactivated|suspended|banned|on hold)\b", re.I)
_NO_MONEY = re.compile(r"credit balance is too low|insufficient credits?|out of credits?", re.I)
_EXPIRED = re.compile(r"\btoken\b.*\bexpired\b", re.I)


def anthropic(response: Response, source: Source) -> Reading:
    """Read a live response: buckets from its headers, a blocker from its error."""
    account = Account(response, source, ttl=TTL)
    model = source.model or model_of(response)
    for bucket in BUCKETS:
        _bucket(account, bucket, model)
    blocked = live_errors(account, model)
    return account.reading(proves=LIVE_SUCCESS if response.ok and not blocked else frozenset())


def live_errors(account: Account, model: str) -> bool:
    """Add the blocker of an error that a live response shows, in its status or inside its stream."""
    response, found = account.response, False
    for status, error in _errors(response):
        found = True
        kind, message = text(error.get("type")), text(error.get("message"))
        if status == 529 or kind == "overloaded_error":
            account.block(Kind.OVERLOADED, account.backoff(), model=model, vendor=VENDOR)
        elif _DISABLED.search(message):
            account.block(Kind.ACCOUNT_DISABLED)
        elif _NO_MONEY.search(message) or status == 402 or kind == "billing_error":
            account.block(Kind.QUOTA_EXHAUSTED, reason="credit_balance_too_low")
        elif status == 401 or kind == "authentication_error":
            auth_failed(account, message)
        elif status == 429 or kind == "rate_limit_error":
            account.block(Kind.RATE_LIMITED, account.backoff(), model=model)
    return found


def auth_failed(account: Account, message: str) -> None:
    """Add AUTH_FAILED with the reason that matters to an operator: a lapsed token may only need a refresh."""
    account.block(Kind.AUTH_FAILED, reason="token_expired" if _EXPIRED.search(message) else "rejected", ttl=AUTH_TTL)


def model_of(response: Response) -> str:
    """Return the model that the body names: of a plain answer, or of a stream's `message_start`."""
    named = text(response.any_tree.get("model"))
    starts = (text(mapping(event.get("message")).get("model")) for event in response.events())
    return named or next(filter(None, starts), "")


def _errors(response: Response) -> Iterator[tuple[int, dict[str, Json]]]:
    if not response.ok:
        yield response.status, mapping(response.any_tree.get("error"))
        return
    for event in response.events():
        if text(event.get("type")) == "error":
            yield 0, mapping(event.get("error"))


def _bucket(account: Account, bucket: str, model: str) -> None:
    headers, response = account.response.headers, account.response
    prefix = f"anthropic-ratelimit-{bucket}-"
    remaining, limit = number(headers.get(prefix + "remaining")), number(headers.get(prefix + "limit"))
    if remaining is None and limit is None:
        return
    if remaining is None or limit is None or limit <= 0:
        account.drop(f"{bucket}: no limit to compare with")
        return
    reset = response.absolute(rfc3339(headers.get(prefix + "reset")))
    account.quota(
        bucket,
        remaining=100 * remaining / limit,
        # A full bucket resets "now": that is no reset to wait for.
        resets_at=reset if reset and reset > response.received else None,
        scope=f"model:{model}" if model else "",
    )
