"""SQL in files of its own: `NAME_NNNN.sql` are migrations, forward only; `NAME.sql` holds queries under their names."""

import re
from collections.abc import Mapping
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def migrations(name: str) -> tuple[str, ...]:
    """The scripts of a database in their order; the n-th lifts it from version n - 1 to n."""
    found = sorted(
        entry.name for entry in files(__name__).iterdir() if re.fullmatch(rf"{name}_\d{{4}}\.sql", entry.name)
    )
    return tuple((files(__name__) / script).read_text(encoding="utf-8") for script in found)


def queries(name: str) -> Mapping[str, str]:
    """The statements of a file, each under the name in the `-- name:` line above it."""
    parts = _NAME.split((files(__name__) / f"{name}.sql").read_text(encoding="utf-8"))
    return {title: statement.strip() for title, statement in zip(parts[1::2], parts[2::2], strict=True)}
