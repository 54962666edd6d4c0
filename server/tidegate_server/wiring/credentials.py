"""Who may connect: TLS for the listeners, identities for the calls. Both are read again while the server runs."""

import logging
import ssl
from collections.abc import Sequence
from typing import NamedTuple

import grpc

from tidegate_server.config import Configuration, Tls
from tidegate_server.config import Identity as IdentitySettings
from tidegate_server.core.model import Caller
from tidegate_server.errors import TidegateError
from tidegate_server.usecases.identify import CertificateName, Identify, Identity, local_identity

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
    return Identity(caller, digest, _certificate_name(settings))


def _certificate_name(settings: IdentitySettings) -> CertificateName | None:
    if settings.spiffe_id is not None:
        return CertificateName("spiffe", settings.spiffe_id)
    if settings.dns is not None:
        return CertificateName("dns", settings.dns.lower())
    return CertificateName("cn", settings.common_name) if settings.common_name is not None else None


class UnusableCertificates(TidegateError):
    """The certificate files of `tls` cannot be served with."""


class _Pems(NamedTuple):
    """What the files of `tls` hold; `client_ca` None: clients show no certificate."""

    key: bytes
    certificate: bytes
    client_ca: bytes | None


class Certificates:
    """The server's certificate and its clients' authorities, looked at again for each new connection.

    Files that cannot be read, are half-written, or do not go with each other leave the last good set in force. So an
    authority that was removed signs no new connection; those that are open live on. Raises UnusableCertificates when
    the first set is not usable: then there is no good one to keep.
    """

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._fault = ""
        try:
            self._good = self._usable()
        except _UNUSABLE as fault:
            raise UnusableCertificates(f"tls: {_what(fault)}") from fault

    def credentials(self) -> grpc.ServerCredentials:
        """What a listener needs. With a `clientCa` every client must show a certificate that it signed."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            self._fetch,  # type: ignore[arg-type] # None: nothing has changed, as grpc documents it
            require_client_authentication=self._tls.client_ca is not None,
        )

    def warnings(self) -> Sequence[str]:
        """What an operator should know: that the files are not those in force."""
        return [f"tls: {self._fault}; the last good files stay in force"] if self._fault else []

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake, from a thread of its own."""
        try:
            now = self._files()
            if now != self._good:
                now = self._usable()
        except _UNUSABLE as fault:
            if self._fault != _what(fault):
                self._fault = _what(fault)
                log.warning("tls: %s; the last good files stay in force", self._fault)
            return None
        self._fault = ""
        if now == self._good:
            return None
        self._good = now
        log.info("tls: the changed certificate files are in force")
        return self._configuration()

    def _usable(self) -> _Pems:
        """The files, if a connection can be served with them. Raises one of _UNUSABLE."""
        pems = self._files()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._tls.certificate, self._tls.key, password=_no_password)
        if pems.client_ca is not None:
            context.load_verify_locations(cadata=pems.client_ca.decode("ascii"))
        for pem in (pems.key, pems.certificate, pems.client_ca or b""):
            if pem.count(b"-----BEGIN ") != pem.count(b"-----END "):
                raise ValueError("a file ends in the middle of a block")
        if pems != self._files():  # what was checked must be what is used
            raise ValueError("a file is being written")
        return pems

    def _files(self) -> _Pems:
        tls = self._tls
        client_ca = tls.client_ca.read_bytes() if tls.client_ca is not None else None
        return _Pems(tls.key.read_bytes(), tls.certificate.read_bytes(), client_ca)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        key, certificate, client_ca = self._good
        return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca)


_UNUSABLE = (OSError, ValueError)
"""What reading and checking may raise; ssl.SSLError is an OSError."""


def _what(fault: Exception) -> str:
    """A fault without a path or anything that a file holds."""
    if isinstance(fault, ssl.SSLError):
        return f"the files do not go together or are not PEM ({fault.reason or 'SSL'})"
    if isinstance(fault, OSError):
        return f"a file cannot be read ({fault.strerror})"
    return str(fault) if type(fault) is ValueError else "a file is not PEM"


def _no_password() -> str:
    raise ValueError("the key is encrypted, and there is nobody to ask for its password")
