"""Functions that Valkey and Redis run, in files of their own.

A library's name and those of its functions end with a digest of its text, so that two versions of the product can work
on one server during a roll-out, each with its own rules.
"""

import hashlib
from importlib.resources import files
from typing import NamedTuple


class Library(NamedTuple):
    """A library as it is loaded; `version` ends the names of its functions."""

    version: str
    code: str


def library(name: str) -> Library:
    """The library of the file `name`.lua."""
    text = (files(__name__) / f"{name}.lua").read_text(encoding="utf-8")
    version = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Library(version, text.replace("VERSION", version))
