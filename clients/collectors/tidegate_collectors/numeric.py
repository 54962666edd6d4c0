"""Numbers as providers write them: JSON numbers or strings, sometimes NaN, sometimes missing."""

from decimal import Decimal, InvalidOperation

_LONGEST = 64
"""Characters of a number; a longer one is not meant as a quantity."""


def number(value: object) -> Decimal | None:
    """Return a finite number, or None for whatever is not one (NaN, infinity, text, a truth value, nothing)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and not 0 < len(text) <= _LONGEST:
        return None
    try:
        result = Decimal(repr(text)) if isinstance(text, float) else Decimal(text)
    except InvalidOperation:
        return None
    # An exponent far out is finite, and still nothing that arithmetic should be tried on.
    return result if result.is_finite() and abs(result.adjusted()) < _LONGEST else None


def count(value: object) -> int | None:
    """Return a number of things: whole, not negative, within 63 bits."""
    result = number(value)
    if result is None or not 0 <= result < 1 << 62:
        return None
    return int(result)


def fraction(value: object) -> float | None:
    """Return a share of a whole, clamped to 0 to 1."""
    result = number(value)
    return None if result is None else float(min(max(result, Decimal()), Decimal(1)))
