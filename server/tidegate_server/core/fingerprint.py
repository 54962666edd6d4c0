"""Fingerprints: SHA-256 over canonical JSON, so that any language can compute the same one from the same settings.

The canonical form:

- UTF-8, no blanks, no byte-order mark; the keys of an object in the order of their code points;
- text: only `"`, `\\` and the control characters U+0000 to U+001F are escaped, in the shortest way that JSON has
  (`\\n`, else `\\u001f` in lower case); everything else stands for itself;
- numbers: the shortest decimal that reads back as the same IEEE 754 double, without exponent, without a fraction that
  is zero: 15 and 15.0 are `15`. Whole numbers keep every digit.

A fingerprint is the digest in 64 lower-case hexadecimal digits.
"""

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import TypeAlias

from tidegate_server.core.model import Blocker, Tier
from tidegate_server.core.policy import PAID_ON_DEFAULT

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None


def canonical(value: Json) -> str:
    """Write `value` in the canonical form. NaN and the infinities have none: ValueError."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{canonical(key)}:{canonical(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _decimal(value)
    return "[" + ",".join(canonical(item) for item in value) + "]"


def _decimal(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError("a number must be finite")
    if value.is_integer():
        return str(int(value))
    return format(Decimal(repr(value)), "f")


def fingerprint(value: Json) -> str:
    """Return the SHA-256 of the canonical form of `value`."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def policy_fingerprint(  # noqa: PLR0913 - one for each setting, each by its name
    *,
    purpose: str,
    candidates: Sequence[str],
    context_window: int,
    max_context_bytes: int,
    min_remaining_percent: float = 2.0,
    allow_paid: bool = False,
    prefer_paid_flash: bool = False,
    require_flow: bool = False,
    paid_on: Collection[Blocker] = PAID_ON_DEFAULT,
    auto_compact_token_limit: int | None = None,
    candidate_reasoning_efforts: Mapping[str, str] | None = None,
) -> str:
    """Return the fingerprint of a route's own settings (§2 of the contract, "policy fingerprint").

    It covers an object with the keys of the configuration. The four without a default are always there. The other ones
    are there only when they differ from the default above: so a new optional setting of the product never changes the
    fingerprint of an old route. For the same reason a default above is never changed: another meaning of "left out"
    needs another name. Candidates stand as the route spells and orders them, `paidOn` as a set: sorted, each once.

    The route's name is not in it: it is no setting of the route but the key that the pins of the route are kept under,
    so two names never share a pin, and two routes with one fingerprint are seen to be one policy. The purpose is in it:
    it decides what the policy may be. Nothing outside of the route is: `paidModels`, a provider, a fact.
    """
    settings: dict[str, Json] = {
        "purpose": purpose,
        "candidates": list(candidates),
        "contextWindow": context_window,
        "maxContextBytes": max_context_bytes,
    }
    if min_remaining_percent != 2.0:
        settings["minRemainingPercent"] = min_remaining_percent
    flags = {"allowPaid": allow_paid, "preferPaidFlash": prefer_paid_flash, "requireFlow": require_flow}
    settings |= {name: True for name, is_set in flags.items() if is_set}
    if frozenset(paid_on) != PAID_ON_DEFAULT:
        settings["paidOn"] = sorted({blocker.name for blocker in paid_on})
    if auto_compact_token_limit is not None:
        settings["autoCompactTokenLimit"] = auto_compact_token_limit
    if candidate_reasoning_efforts:
        settings["candidateReasoningEfforts"] = dict(candidate_reasoning_efforts)
    return fingerprint(settings)


def binding_fingerprint(*, provider: str, kind: Tier, credential: str, model: str) -> str:
    """Return the fingerprint of what a pin binds to (§2, "binding fingerprint").

    It covers an object with the keys `credential`, `kind` (`local`, `subscription` or `paid`), `model` and `provider`.
    `credential` names a source; its contents are never read, so they are in no fingerprint.
    """
    return fingerprint({"provider": provider, "kind": kind.name.lower(), "credential": credential, "model": model})
