"""The schema's migrations, and which of them a database has seen.

A migration is a file `NNNN_pre_….sql` or `NNNN_post_….sql`. Those of `pre` only add: they are applied before a new
version rolls out, and the old one runs on with them. Those of `post` take away or forbid: they are applied when no old
process is left. So a version refuses a database that has a `post` migration it does not know, and one that lacks a
`pre` migration it needs.
"""

import re
from collections.abc import Collection
from importlib.resources import files
from typing import NamedTuple

PHASES = ("pre", "post")

_FOLDER = files("tidegate_server.stores") / "sql/postgres"
_NAME = re.compile(r"\d{4}_(pre|post)_\w+\.sql")


class Migration(NamedTuple):
    """One step of the schema."""

    name: str
    phase: str
    script: str


def known_migrations() -> tuple[Migration, ...]:
    """Those of this version, in their order."""
    named = ((entry, _NAME.fullmatch(entry.name)) for entry in _FOLDER.iterdir())
    found = [
        Migration(entry.name.removesuffix(".sql"), match[1], entry.read_text(encoding="utf-8"))
        for entry, match in named
        if match is not None
    ]
    return tuple(sorted(found))


def schema_fault(applied: Collection[str]) -> str:
    """Why this version must not work on a database with these migrations; "" when it may."""
    known = known_migrations()
    newer = sorted(name for name in set(applied) - {m.name for m in known} if name.split("_")[1] == "post")
    if newer:
        return f"a newer version has changed the database's schema ({', '.join(newer)}); run that version"
    missing = [m.name for m in known if m.phase == "pre" and m.name not in applied]
    if missing:
        return f'the database lacks {", ".join(missing)}; run "tidegate migrate"'
    return ""
