"""Who the caller is, and how the connection is protected (§13 of the contract)."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc import aio

from tidegate.errors import CredentialError

DEFAULT_TARGET = "127.0.0.1:50051"
TOKEN_FILE_VARIABLE = "TIDEGATE_TOKEN_FILE"  # noqa: S105 - the name of a variable, not a token
SERVER_VARIABLE = "TIDEGATE_SERVER"
LOCAL_TOKEN = Path("state/local.token")

CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    # The server refuses pings that come more often than every 10 s; a dead peer is found within 30 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 8_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A server that restarts is found again at once, not after grpc's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # In spite of its name: how long one attempt to connect may take, TLS over a slow network included.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Retries are the client's own (tidegate.retry), one layer of them.
    ("grpc.enable_retries", 0),
)


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS to the server; with `certificate` and `key` also mTLS. Paths of PEM files, read when a channel opens."""

    ca: str | Path | None = None
    """Authority that signed the server's certificate; None: those of the system."""
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str = ""
    """Name in the server's certificate, where it is not the host of the target."""

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files. CredentialError names the one that cannot be read."""
        if (self.certificate is None) != (self.key is None):
            raise CredentialError("tls: certificate and key belong together, one is missing")
        return grpc.ssl_channel_credentials(_pem(self.ca), _pem(self.key), _pem(self.certificate))


class TokenFile:
    """A bearer token in a file, read again when the file changes, so that a rotated token needs no restart."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._seen: tuple[int, int, int] | None = None
        self._token = ""

    def read(self) -> str:
        """Return the token. CredentialError: the file is missing, unreadable, empty or holds more than a token."""
        try:
            status = self.path.stat()
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen != self._seen:
                self._token, self._seen = _token(self.path), seen
        except OSError as error:
            raise CredentialError(f"token file {self.path}: {error.strerror}") from None
        return self._token

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the call metadata that shows the token."""
        return (("authorization", f"Bearer {self.read()}"),)


class AppearingToken(TokenFile):
    """The token of a server on this machine that may not have made it yet: until the file is there, none is shown."""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the call metadata that shows the token, nothing while there is no file that this user can read."""
        return super().metadata() if os.access(self.path, os.R_OK) else ()


def find_local_token(
    explicit: str | Path | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    directory: str | Path = ".",
) -> TokenFile | None:
    """Find the token file: `explicit`, else the one that TIDEGATE_TOKEN_FILE names, else `state/local.token`.

    The last is where a server with the default `stateDirectory` that was started in `directory` keeps it (0600), and is
    taken only where it exists and this user can read it. The first two are taken as they are: a file that is named and
    missing is an error when it is read, never "no token".
    """
    named = explicit or environ.get(TOKEN_FILE_VARIABLE)
    if named:
        return TokenFile(named)
    local = Path(directory) / LOCAL_TOKEN
    return TokenFile(local) if os.access(local, os.R_OK) else None


def default_target(environ: Mapping[str, str] = os.environ) -> str:
    """Return the server's address: TIDEGATE_SERVER, else 127.0.0.1:50051."""
    return environ.get(SERVER_VARIABLE) or DEFAULT_TARGET


def is_local(target: str) -> bool:
    """Tell whether a target stays on this machine: a unix socket, `localhost` or a loopback address."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    host = target.rpartition("/")[2].rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the server is, and what the client shows it.

    Without `tls` the connection is in clear, which is for this machine only: with a token, another address is refused
    (CredentialError) unless `insecure` says that the network itself is trusted.
    """

    target: str
    tls: Tls | None = None
    token: TokenFile | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.token and not (self.tls or self.insecure or is_local(self.target)):
            raise CredentialError(f"{self.target}: a token needs TLS outside this machine (or insecure=True)")

    @classmethod
    def find(
        cls,
        target: str | None = None,
        *,
        tls: Tls | None = None,
        token_file: str | Path | None = None,
        insecure: bool = False,
    ) -> "Connection":
        """Fill in what is not given: the target by `default_target`, the token by `find_local_token`.

        A local server that has yet to make its token is shown it as soon as it has. A remote server is never shown the
        token of a local one that merely lies in the working directory.
        """
        address = target or default_target()
        here = is_local(address)
        named = bool(token_file or os.environ.get(TOKEN_FILE_VARIABLE))
        token = find_local_token(token_file) if named else AppearingToken(LOCAL_TOKEN.absolute()) if here else None
        return cls(address, tls, token, insecure)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of one call."""
        return self.token.metadata() if self.token else ()

    def open(self) -> grpc.Channel:
        """Open a channel for blocking calls."""
        options = self._options()
        if self.tls:
            return grpc.secure_channel(self.target, self.tls.credentials(), options)
        return grpc.insecure_channel(self.target, options)

    def open_asyncio(self) -> aio.Channel:
        """Open a channel for the running event loop."""
        options = self._options()
        if self.tls:
            return aio.secure_channel(self.target, self.tls.credentials(), options)
        return aio.insecure_channel(self.target, options)

    def _options(self) -> list[tuple[str, int | str]]:
        name = self.tls.server_name if self.tls else ""
        return [*CHANNEL_OPTIONS, *([("grpc.ssl_target_name_override", name)] if name else [])]


def _token(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise CredentialError(f"token file {path}: holds no single token")
    return text


def _pem(path: str | Path | None) -> bytes | None:
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise CredentialError(f"tls: {path}: {error.strerror}") from None
