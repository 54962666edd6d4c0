"""GitHub Copilot: /copilot_internal/user, which GitHub does not document, and the headers of live responses.

Both say what is left, in percent. An entitlement of -1 is unlimited; an entitlement of 0 with 100 % left is a
placeholder of seats that are billed by tokens. `x-usage-ratelimit-*` always has an entitlement of 0, and a true `rem`.
"""

from urllib.parse import parse_qs

from tidegate_collectors.account import AUTH_TTL, LIVE_SUCCESS, SUCCESS, Account, refused
from tidegate_collectors.facts import Kind, Quota, Reading, Source, failure
from tidegate_collectors.numeric import number
from tidegate_collectors.payload import Json, Malformed, Response, mapping
from tidegate_collectors.times import date_utc, rfc3339

TTL = 900.0
MONTH = "1mo"
_SNAPSHOT = "x-quota-snapshot-"
_USAGE = "x-usage-ratelimit-"


def copilot(response: Response, source: Source) -> Reading:
    """Read whichever of the two sources this is."""
    if any(name in response.any_tree for name in ("quota_snapshots", "copilot_plan", "limited_user_quotas")):
        return user(response, source)
    return live(response, source)


def user(response: Response, source: Source) -> Reading:
    """Read /copilot_internal/user."""
    account = Account(response, source, ttl=TTL)
    if not response.ok:
        return refused(response, source, "the user endpoint")
    try:
        tree = response.tree
    except Malformed as error:
        return failure(f"the user endpoint: {error}")
    reset = rfc3339(tree.get("quota_reset_date_utc")) or date_utc(tree.get("quota_reset_date"))
    for name, snapshot in mapping(tree.get("quota_snapshots")).items():
        shot = mapping(snapshot)
        if shot.get("unlimited") is True:
            account.quota(MONTH, unlimited=True, scope=name)
        elif not number(shot.get("entitlement")):
            account.drop(f"{MONTH}/{name}: a placeholder, no entitlement")
        else:
            account.quota(
                MONTH, remaining=shot.get("percent_remaining"), resets_at=response.absolute(reset), scope=name
            )
    _limited_user(account, tree)
    return account.reading(complete=True, proves=SUCCESS, empty="the user endpoint named no quota")


def live(response: Response, source: Source) -> Reading:
    """Read the headers of a live response. On errors the snapshots are missing, which says nothing."""
    account = Account(response, source, ttl=TTL)
    for name, value in response.headers.items():
        if name.startswith(_SNAPSHOT):
            _snapshot(account, name.removeprefix(_SNAPSHOT), _query(value))
        elif name.startswith(_USAGE):
            query = _query(value)
            reset = response.absolute(rfc3339(query.get("rst")))
            account.quota(name.removeprefix(_USAGE), remaining=query.get("rem"), resets_at=reset)
    if response.ok:
        return account.reading(proves=LIVE_SUCCESS)
    if response.status == 429:
        _limited(account)
    elif response.status == 401:
        account.block(Kind.AUTH_FAILED, reason="rejected", ttl=AUTH_TTL)
    elif response.status == 402:
        account.block(Kind.QUOTA_EXHAUSTED, reason="quota_exceeded")
    return account.reading()


def _limited(account: Account) -> None:
    """Block by the window that the response names, until that window's reset; without one it is a burst."""
    exceeded = account.response.headers.get("x-ratelimit-exceeded", "")
    if not exceeded:
        account.block(Kind.RATE_LIMITED, account.backoff(), model=account.source.model)
        return
    after = account.response.after(account.response.retry_after)
    windows = [fact for fact in account.facts if isinstance(fact, Quota)]
    named = next((quota for quota in windows if not quota.scope and quota.window in exceeded), None)
    until = after or (named.resets_at if named else None) or account.backoff()
    account.block(Kind.QUOTA_EXHAUSTED, until, reason=exceeded, window=named.window if named else "")


def _snapshot(account: Account, scope: str, query: dict[str, str]) -> None:
    entitlement = number(query.get("ent"))
    reset = account.response.absolute(rfc3339(query.get("rst")))
    if entitlement == -1:
        account.quota(MONTH, unlimited=True, scope=scope)
    elif entitlement == 0:
        account.drop(f"{MONTH}/{scope}: a placeholder, no entitlement")
    else:
        account.quota(MONTH, remaining=query.get("rem"), resets_at=reset, scope=scope)


def _limited_user(account: Account, tree: dict[str, Json]) -> None:
    """Read the free plan, which counts what is left of a monthly number."""
    monthly = mapping(tree.get("monthly_quotas"))
    reset = account.response.absolute(date_utc(tree.get("limited_user_reset_date")))
    for name, left in mapping(tree.get("limited_user_quotas")).items():
        remaining, limit = number(left), number(monthly.get(name))
        if remaining is None or not limit or limit <= 0:
            account.drop(f"{MONTH}/{name}: no limit to compare with")
        else:
            account.quota(MONTH, remaining=100 * remaining / limit, resets_at=reset, scope=name)


def _query(value: str) -> dict[str, str]:
    """Read a header that is written like a query string; a name that stands twice keeps its first value."""
    return {name: values[0] for name, values in parse_qs(value, max_num_fields=32).items()}
