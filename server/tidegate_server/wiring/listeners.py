"""The gRPC servers: their options, addresses and transport security."""

import socket
import stat
from collections.abc import Sequence
from pathlib import Path

import grpc

from tidegate_server.config import Address, Configuration
from tidegate_server.errors import TidegateError
from tidegate_server.wiring.credentials import Certificates

KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 10_000
"""A ping after 10 s of silence, an answer within 10 s: a dead peer is gone within 30 s (§6)."""

SHORTEST_PING_MS = 5_000
"""The most often that a client may ping without a call: grpc-go's own shortest is 10 s. Two strikes, then GOAWAY."""

STREAMS_PER_CONNECTION = 1_000
"""RPCs of one connection at a time. More wait on the client's side: the first back-pressure, before any refusal."""

HANDSHAKE_MS = 10_000
METADATA_BYTES = 8_192
"""How long a connection may take to become one, and how much metadata a call may bring (§11: trailers keep to it)."""


class CannotListen(TidegateError):
    """An address is taken, or not ours."""


def server_options(configuration: Configuration, *, shares_port: bool = False) -> list[tuple[str, int]]:
    """What every listener keeps to. Only the workers of one supervisor share a port."""
    return [
        # On by default, and then a second, different server shares the port in silence.
        ("grpc.so_reuseport", int(shares_port)),
        ("grpc.max_receive_message_length", configuration.limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_metadata_size", METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),  # a minute by default, and the longer of the two counts
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", SHORTEST_PING_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", SHORTEST_PING_MS),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def listen(server: grpc.aio.Server, addresses: Sequence[Address], certificates: Certificates | None) -> list[Address]:
    """Bind every address; return them with the ports that were given. Raises CannotListen."""
    return [_bind(server, address, certificates) for address in addresses]


def _bind(server: grpc.aio.Server, address: Address, certificates: Certificates | None) -> Address:
    if address.path:
        refuse_taken_socket(Path(address.path))
    try:
        if certificates is not None and not address.path:
            port = server.add_secure_port(str(address), certificates.credentials())
        else:
            port = server.add_insecure_port(str(address))
    except RuntimeError as error:
        raise CannotListen(f"{address}: cannot listen there; is another server running on it?") from error
    return address if address.path else address._replace(port=port)


def refuse_taken_socket(path: Path) -> None:
    """gRPC replaces whatever lies at a unix socket's path: a living server's socket, too. That must not happen."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotListen(f"unix:{path}: there is something that is no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return
    raise CannotListen(f"unix:{path}: another server listens there")
