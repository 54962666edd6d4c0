"""Where something is: addresses to listen on, endpoints, stores, and the sources of secrets.

A value here may hold a secret by intent (a store's URL) or by mistake (a key in place of its source), so no fault shows
the value.
"""

import ipaddress
import re
from collections.abc import Callable
from typing import Annotated, NamedTuple
from urllib.parse import SplitResult, urlsplit, urlunsplit

from pydantic import SecretStr

from tidegate_server.config.scalars import TEXT, BadValue, Leaf, kind_of


class Address(NamedTuple):
    """An address to listen on: `host` and `port` (0: any free one), or a unix socket's `path`."""

    host: str
    port: int
    path: str = ""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")
_UNIX = re.compile(r"unix:(?://)?(?P<path>/[^\x00-\x1f\x7f]+)")


def read_address(value: object) -> Address:
    """Read host:port, [IPv6]:port or unix:/path."""
    refused = BadValue("must be an address: host:port, [IPv6]:port or unix:/path")
    if not isinstance(value, str):
        raise BadValue(f"{refused}, not {kind_of(value)}")
    if unix := _UNIX.fullmatch(value):
        return Address("", 0, unix["path"])
    match = _ADDRESS.fullmatch(value)
    if match is None:
        raise refused
    if int(match["port"]) > 65535:
        raise BadValue("must have a port from 0 (any free one) to 65535")
    host = match["v6"] or match["host"]
    try:
        numeric = bool(match["v6"]) or re.fullmatch(r"[0-9.]+", host) is not None
        return Address(str(ipaddress.ip_address(host)) if numeric else host, int(match["port"]))
    except ValueError:
        raise refused from None


def _split(value: object, schemes: tuple[str, ...], *, needs_host: bool = True) -> SplitResult:
    wanted = " or ".join(f"{scheme}://…" for scheme in schemes)
    if not isinstance(value, str):
        raise BadValue(f"must be a URL, {wanted}, not {kind_of(value)}")
    try:
        url = urlsplit(value)
        host = url.hostname
        _ = url.port  # reading it checks it
    except ValueError:
        raise BadValue(f"must be a URL, {wanted}") from None
    blank = any(c.isspace() or not c.isprintable() for c in value)
    if url.scheme not in schemes or not value.startswith(f"{url.scheme}://") or blank or (needs_host and not host):
        raise BadValue(f"must be a URL, {wanted}")
    return url


def without_password(url: str) -> str:
    """Return the URL with its password left out, fit to be shown or fingerprinted."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    query = "&".join(part for part in parts.query.split("&") if not part.lower().startswith("password="))
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + host, query=query))


DURABLE_SCHEMES = ("postgresql", "postgres")
LIVE_SCHEMES = ("valkey", "redis", "valkeys", "rediss")
HTTP_SCHEMES = ("http", "https")


def read_durable(value: object) -> SecretStr:
    """Read a PostgreSQL URL. The host may stand in the query (`?host=/run/postgresql`)."""
    _split(value, DURABLE_SCHEMES, needs_host=False)
    return SecretStr(str(value))


def read_live(value: object) -> SecretStr:
    """Read a Valkey or Redis URL."""
    _split(value, LIVE_SCHEMES)
    return SecretStr(str(value))


def read_endpoint(value: object) -> str:
    """Read an HTTP endpoint, without a user or password: a key has a setting of its own."""
    url = _split(value, HTTP_SCHEMES)
    if "@" in url.netloc or url.query or url.fragment:
        raise BadValue("must be a plain URL, without user, password, query or fragment; a key belongs in apiKey")
    return str(value).rstrip("/")


SOURCE_LIMIT = 128
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_START = re.compile(
    r"(sk|pk|rk)[-_]|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|AKIA|AIza|ya29\.|eyJ|hf_|gsk_|xai-|Bearer\b|Basic\b|-----",
    re.IGNORECASE,
)
_LONG_RUN = re.compile(r"[A-Za-z0-9+=]{32,}")
_SOURCES = "none, env:NAME, file:PATH, keyring:NAME, or LOGIN:LABEL as in claude-oauth:primary"


def read_credential(value: object) -> str:
    """Read the name of a credential's source; whatever looks like the credential itself is refused.

    A fault never shows the value. What counts as contents: the known beginnings of keys and tokens, blanks, more than
    128 characters, and (outside of a path) 32 or more letters and digits in a row.
    """
    if not isinstance(value, str):
        raise BadValue(f"must be text that names a source ({_SOURCES}), not {kind_of(value)}")
    source, colon, label = value.partition(":")
    is_path = source == "file"
    if not source or (colon and not label) or not value.isascii() or not value.isprintable():
        raise BadValue(f"must name a source: {_SOURCES}")
    parts = (source, label)
    contents = any(_SECRET_START.match(part) or (not is_path and _LONG_RUN.search(part)) for part in parts)
    if contents or len(value) > SOURCE_LIMIT or (" " in value and not is_path):
        raise BadValue(f"looks like a secret's contents; it must name a source: {_SOURCES}")
    if source == "env" and not _ENV_NAME.fullmatch(label):
        raise BadValue("must name an environment variable after env:, as in env:OPENROUTER_API_KEY")
    return value


def read_api_key(value: object) -> str:
    """Read the source of an API key: env:NAME or file:PATH."""
    if isinstance(value, str) and value.partition(":")[0] in {"env", "file"}:
        return read_credential(value)
    raise BadValue("must name where the key is, env:NAME or file:PATH, never the key itself")


def _store(read: Callable[[object], SecretStr], schemes: tuple[str, ...]) -> Leaf:
    schema = TEXT | {"pattern": f"^({'|'.join(schemes)})://"}
    return Leaf(read, schema, lambda url: without_password(url.get_secret_value()))


ListenAddress = Annotated[Address, Leaf(read_address, TEXT | {"minLength": 1}, str)]
DurableUrl = Annotated[SecretStr, _store(read_durable, DURABLE_SCHEMES)]
LiveUrl = Annotated[SecretStr, _store(read_live, LIVE_SCHEMES)]
Endpoint = Annotated[str, Leaf(read_endpoint, TEXT | {"pattern": "^https?://"})]
Credential = Annotated[str, Leaf(read_credential, TEXT | {"minLength": 1, "maxLength": SOURCE_LIMIT})]
ApiKey = Annotated[str, Leaf(read_api_key, TEXT | {"pattern": "^(env|file):"})]
