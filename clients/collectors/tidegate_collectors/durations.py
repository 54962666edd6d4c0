"""Lengths of time in configuration files: `5s`, `1.5m`, `2h`, `1d`, or a number of seconds."""

import math
import re
from typing import Annotated

from pydantic import BeforeValidator

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")


def seconds(value: object) -> float:
    """Return a length of time in seconds; ValueError when it is none, or not above zero."""
    result = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        result = float(value)
    elif isinstance(value, str):
        match = _TEXT.fullmatch(value.strip())
        if match:
            result = float(match[1]) * _UNITS[match[2] or "s"]
    if not 0 < result < math.inf:
        raise ValueError("not a length of time above zero, as in 5s, 2m, 1h")
    return result


Seconds = Annotated[float, BeforeValidator(seconds)]
