"""Who may connect: TLS for the listeners, identities for the calls. Both are read again while the server runs."""

import logging

import grpc

from tidegate_server.config import Configuration, Tls
from tidegate_server.config import Identity as IdentitySettings
from tidegate_server.core.model import Caller
from tidegate_server.usecases.identify import Identify, Identity, local_identity

log = logging.getLogger("tidegate.credentials")


def identify(configuration: Configuration, local_token: str) -> Identify:
    """The identities in force; without configured ones this machine's own callers and the local token."""
    if configuration.identities:
        return Identify([_identity(settings) for settings in configuration.identities], open_to_local=False)
    return Identify([local_identity(local_token)], open_to_local=all(a.is_loopback for a in configuration.listen))


def _identity(settings: IdentitySettings) -> Identity:
    providers = frozenset(settings.providers) if settings.providers else None
    caller = Caller(
        settings.name, settings.namespace, frozenset({settings.role}), providers, start_flows=settings.start_flows
    )
    digest = bytes.fromhex(settings.token_sha256) if settings.token_sha256 else b""
    return Identity(caller, digest, settings.spiffe_id or settings.dns or settings.common_name or "")


class Certificates:
    """The server's certificate, read again for each new connection when a file has changed.

    A file that cannot be read, or that does not go with the others, leaves the last good set in force.
    """

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._read: tuple[bytes, bytes, bytes] = self._files()

    def credentials(self) -> grpc.ServerCredentials:
        """What a listener needs. With a `clientCa` clients must show a certificate."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            self._fetch,  # type: ignore[arg-type] # None: nothing has changed, as grpc documents it
            require_client_authentication=self._tls.client_ca is not None,
        )

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        try:
            now = self._files()
            if now == self._read:
                return None
            check_pair(now[1], now[0])
        except (OSError, ValueError) as fault:
            log.warning("a certificate file is not usable, the last good ones stay in force: %s", type(fault).__name__)
            return None
        self._read = now
        return self._configuration()

    def _files(self) -> tuple[bytes, bytes, bytes]:
        tls = self._tls
        client_ca = tls.client_ca.read_bytes() if tls.client_ca is not None else b""
        return tls.key.read_bytes(), tls.certificate.read_bytes(), client_ca

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        key, certificate, client_ca = self._read
        return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca or None)


def check_pair(certificate: bytes, key: bytes) -> None:
    """Raises ValueError unless both are whole PEM files."""
    for pem, label in ((certificate, b"CERTIFICATE"), (key, b"PRIVATE KEY")):
        if label not in pem or pem.count(b"-----BEGIN") != pem.count(b"-----END") or not pem.strip().endswith(b"-----"):
            raise ValueError("is not a whole PEM file")
