"""DeepSeek: /user/balance, one row a currency, amounts as text, the order of the rows not stable."""

from tidegate_collectors.account import SUCCESS, Account, refused
from tidegate_collectors.facts import Kind, Reading, Source, failure
from tidegate_collectors.payload import Malformed, Response, items, mapping, text

TTL = 300.0


def deepseek(response: Response, source: Source) -> Reading:
    """Read the balances; every currency stands for itself. Of a live response only the error is read."""
    account = Account(response, source, ttl=TTL)
    if response.status == 402:
        account.block(Kind.QUOTA_EXHAUSTED, reason="insufficient_balance")
        return account.reading()
    if not response.ok:
        return refused(response, source, "/user/balance")
    try:
        tree = response.tree
    except Malformed as error:
        return failure(f"/user/balance: {error}")
    usable = tree.get("is_available") is not False
    for row in map(mapping, items(tree.get("balance_infos"))):
        currency = text(row.get("currency"))
        if currency:
            account.balance(currency, row.get("total_balance"), usable=usable)
        else:
            account.drop("a balance without a currency")
    return account.reading(complete=True, proves=SUCCESS, empty="/user/balance: no balance with a currency")
