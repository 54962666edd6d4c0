"""Gemini Code Assist: retrieveUserQuota, undocumented. Buckets by model, as the fraction that remains.

The list is known to be incomplete (requests are refused while every bucket has room), so a live refusal outranks it.
"""

from tidegate_collectors.account import SUCCESS, Account, refused
from tidegate_collectors.facts import Reading, Source, failure
from tidegate_collectors.numeric import number
from tidegate_collectors.payload import Malformed, Response, items, mapping, text
from tidegate_collectors.times import rfc3339

TTL = 900.0


def gemini(response: Response, source: Source) -> Reading:
    """Read the buckets. One without a fraction is unknown, whatever its amount says."""
    account = Account(response, source, ttl=TTL)
    if not response.ok:
        return refused(response, source, "retrieveUserQuota")
    try:
        tree = response.tree
    except Malformed as error:
        return failure(f"retrieveUserQuota: {error}")
    for bucket in map(mapping, items(tree.get("buckets"))):
        model, left = text(bucket.get("modelId")), number(bucket.get("remainingFraction"))
        if not model:
            account.drop("a bucket without a model")
            continue
        account.quota(
            text(bucket.get("tokenType")).lower() or "requests",
            remaining=None if left is None else left * 100,
            resets_at=response.absolute(rfc3339(bucket.get("resetTime"))),
            scope=f"model:{model}",
        )
    return account.reading(complete=True, proves=SUCCESS, empty="retrieveUserQuota named no bucket")
