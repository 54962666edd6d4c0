"""OpenRouter: the key's cap, the account's credits, and the errors of live responses.

Key and credits are different things: a key's `limit_remaining` is not the account's balance. /credits is for management
keys; for others it answers 403, or 200 with two zeros, which is no answer.
"""

from datetime import datetime, timedelta
from decimal import Decimal

from tidegate_collectors.account import AUTH_TTL, LIVE_SUCCESS, SUCCESS, Account, refused
from tidegate_collectors.facts import Kind, Reading, Source, failure
from tidegate_collectors.numeric import number
from tidegate_collectors.payload import Json, Malformed, Response, mapping, text
from tidegate_collectors.times import epoch_ms, period_utc

BALANCE_TTL = 600.0
FREE_TTL = 300.0
FREE_MODELS = "models:*:free"
_CREDIT_FIELDS = ("total_credits", "total_usage")
_KEY_FIELDS = ("limit", "limit_remaining")


def openrouter(response: Response, source: Source) -> Reading:
    """Read whichever of OpenRouter's answers this is; their fields have nothing in common."""
    data = mapping(response.any_tree.get("data"))
    if any(name in data for name in _KEY_FIELDS):
        return key(response, source)
    if any(name in data for name in _CREDIT_FIELDS):
        return credits_of_account(response, source)
    return live(response, source)


def key(response: Response, source: Source) -> Reading:
    """Read /api/v1/key."""
    account = Account(response, source, ttl=FREE_TTL)
    if not response.ok:
        return refused(response, source, "/key")
    try:
        data = mapping(response.tree.get("data"))
    except Malformed as error:
        return failure(f"/key: {error}")
    if "limit_remaining" in data or "limit" in data:
        uncapped = "limit" in data and data["limit"] is None
        account.balance(
            "USD",
            data.get("limit_remaining"),
            scope="key",
            unlimited=uncapped,
            ttl=BALANCE_TTL,
            resets_at=None if uncapped else response.absolute(period_utc(data.get("limit_reset"), _now(response))),
        )
    _free_models(account, mapping(data.get("free_model_daily_requests")))
    return account.reading(complete=True, proves=SUCCESS, empty="/key: no limit and no free requests")


def credits_of_account(response: Response, source: Source) -> Reading:
    """Read /api/v1/credits. With the option `management_key` two zeros are believed."""
    account = Account(response, source, ttl=BALANCE_TTL)
    if response.status == 403:
        return failure("/credits: only management keys may read it")
    if not response.ok:
        return refused(response, source, "/credits")
    try:
        data = mapping(response.tree.get("data"))
    except Malformed as error:
        return failure(f"/credits: {error}")
    bought, used = (number(data.get(name)) for name in _CREDIT_FIELDS)
    if bought is None or used is None:
        return failure("/credits: no numbers")
    if not bought and not used and not source.options.get("management_key"):
        return failure("/credits: two zeros, which is how it answers keys that may not read it")
    account.balance("USD", bought - used)
    return account.reading(complete=True, proves=SUCCESS)


def live(response: Response, source: Source) -> Reading:
    """Read a live response: its error, in the status, in the body, or inside a stream that began well."""
    account = Account(response, source)
    found = False
    documents = [response.any_tree] if response.any_tree else list(response.events())
    for document in documents or [{}]:
        error = mapping(document.get("error"))
        if error or not response.ok:
            found = True
            _live_error(account, document, error)
    return account.reading(proves=frozenset() if found else LIVE_SUCCESS)


def _live_error(account: Account, document: dict[str, Json], error: dict[str, Json]) -> None:
    response, metadata = account.response, mapping(error.get("metadata"))
    code, words = _code(error, response.status), text(error.get("message"))
    model = account.source.model or text(document.get("model"))
    upstream = text(document.get("provider")) or text(metadata.get("provider_name"))
    if code == 402:
        _money(account, text(metadata.get("limit_source")))
    elif code == 403 and words.casefold().startswith("key limit exceeded"):
        account.block(Kind.QUOTA_EXHAUSTED, reason="key_limit")
    elif code == 401:
        account.block(Kind.AUTH_FAILED, reason="rejected", ttl=AUTH_TTL)
    elif code == 429:
        reset = response.absolute(epoch_ms(_header(response, metadata, "x-ratelimit-reset")))
        if "free-models-per-day" in words:
            account.block(Kind.QUOTA_EXHAUSTED, reset or _midnight(response), scope=FREE_MODELS)
        elif "free-models-per-" in words:
            account.block(Kind.RATE_LIMITED, account.backoff(reset), scope=FREE_MODELS)
        else:
            account.block(Kind.RATE_LIMITED, account.backoff(reset), model=model, upstream=upstream)
    elif code in (502, 503, 529):
        account.block(Kind.OVERLOADED, account.backoff(), model=model, upstream=upstream)


def _money(account: Account, limit_source: str) -> None:
    """Tell the money that is gone from the budget that is only taken by requests in flight."""
    if limit_source == "openrouter_in_flight_budget":
        account.block(Kind.RATE_LIMITED, account.backoff(), reason="in_flight_budget")
    else:
        account.block(Kind.QUOTA_EXHAUSTED, reason=limit_source.removeprefix("openrouter_") or "payment_required")


def _code(error: dict[str, Json], status: int) -> int:
    """Return the error's own code; inside a stream it may be a word."""
    words = {"rate_limit_exceeded": 429, "insufficient_credits": 402, "server_error": 502, "overloaded": 503}
    code = error.get("code")
    value = number(code)
    if value is not None:
        return int(value)
    return words.get(text(code), status if status >= 400 else 0)


def _header(response: Response, metadata: dict[str, Json], name: str) -> object:
    """Return a header of the response, or of those that its error carries inside."""
    inner = {key.lower(): value for key, value in mapping(metadata.get("headers")).items()}
    return response.headers.get(name, inner.get(name))


def _free_models(account: Account, requests: dict[str, Json]) -> None:
    remaining, limit = number(requests.get("remaining")), number(requests.get("limit"))
    if not requests:
        return
    if remaining is None or limit is None or limit <= 0:
        account.drop("1d/models:*:free: no limit to compare with")
        return
    left = Decimal(100) * remaining / limit
    account.quota("1d", remaining=left, resets_at=_midnight(account.response), scope=FREE_MODELS)


def _now(response: Response) -> datetime:
    """Return the provider's own clock: its periods end by it."""
    return response.received + timedelta(seconds=response.skew or 0.0)


def _midnight(response: Response) -> datetime | None:
    return response.absolute(period_utc("daily", _now(response)))
