"""OpenAI: the rate-limit headers and the errors of live responses. There is no public balance endpoint.

Limits are per model and project: a bucket of one model says nothing about another. `reset` is the time to a full
bucket, so that capacity returns before it.
"""

from tidegate_collectors.account import LIVE_SUCCESS, Account
from tidegate_collectors.facts import Kind, Reading, Source
from tidegate_collectors.numeric import number
from tidegate_collectors.payload import Response, mapping, text
from tidegate_collectors.times import go_duration

TTL = 60.0
BUCKETS = ("requests", "tokens")
NO_MONEY = frozenset(
    {"insufficient_quota", "credit_balance_exhausted", "billing_hard_limit_reached", "billing_not_active"}
)
DISABLED = frozenset({"account_deactivated", "organization_deactivated"})


def openai(response: Response, source: Source) -> Reading:
    """Read a live response: buckets from its headers, a blocker from its error."""
    model = source.model or _model(response)
    account = Account(response, source, ttl=TTL)
    for bucket in BUCKETS:
        _bucket(account, bucket, model)
    if response.ok:
        return account.reading(proves=LIVE_SUCCESS)
    _error(account, model)
    return account.reading()


def _bucket(account: Account, bucket: str, model: str) -> None:
    headers, response = account.response.headers, account.response
    remaining = number(headers.get(f"x-ratelimit-remaining-{bucket}"))
    limit = number(headers.get(f"x-ratelimit-limit-{bucket}"))
    if remaining is None and limit is None:
        return
    if not model:
        account.drop(f"{bucket}: the response names no model, and the bucket is one model's")
    elif remaining is None or limit is None or limit <= 0:
        account.drop(f"{bucket}: no limit to compare with")
    else:
        reset = response.after(go_duration(headers.get(f"x-ratelimit-reset-{bucket}")))
        account.quota(
            bucket,
            remaining=100 * remaining / limit,
            # A full bucket resets "now": that is no reset to wait for.
            resets_at=reset if reset and reset > response.received else None,
            scope=f"model:{model}",
        )


def _error(account: Account, model: str) -> None:
    response = account.response
    error = mapping(response.any_tree.get("error"))
    kind, code = text(error.get("type")), text(error.get("code"))
    if kind == "insufficient_quota" or code in NO_MONEY or kind in NO_MONEY:
        account.block(Kind.QUOTA_EXHAUSTED, reason=code or kind)
    elif code in DISABLED or kind in DISABLED:
        account.block(Kind.ACCOUNT_DISABLED, reason=code or kind)
    elif response.status == 401:
        account.block(Kind.AUTH_FAILED, reason=code or kind)
    elif response.status == 429:
        account.block(Kind.RATE_LIMITED, account.backoff(), reason=code or kind, model=model)
    elif response.status == 503:
        account.block(Kind.OVERLOADED, account.backoff(), reason=code or kind, model=model)


def _model(response: Response) -> str:
    """Return the model that the body names: of a plain answer, or of a stream's first event that has one."""
    named = text(response.any_tree.get("model"))
    return named or next((text(event.get("model")) for event in response.events() if text(event.get("model"))), "")
