"""Certificate authorities of a test: every key is made when the test runs, and nothing of them outlives it."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = dt.timedelta(days=1)


class Pair(NamedTuple):
    """A certificate and its private key, PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates of servers and clients."""

    def __init__(self, name: str = "test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        own = self._builder(self._name, self._key, DAY)
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.pem = own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def server(self) -> Pair:
        """For `localhost`."""
        return self._signed("server", dns=["localhost"])

    def client(
        self, common_name: str = "", *, uris: Sequence[str] = (), dns: Sequence[str] = (), expired: bool = False
    ) -> Pair:
        """For a client that is known by these names."""
        return self._signed(common_name, uris=uris, dns=dns, lasts=-DAY / 2 if expired else DAY)

    def _signed(
        self,
        common_name: str,
        *,
        uris: Sequence[str] = (),
        dns: Sequence[str] = (),
        lasts: dt.timedelta = DAY,
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
        builder = self._builder(x509.Name(attributes), key, lasts)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        names = [*map(x509.UniformResourceIdentifier, uris), *map(x509.DNSName, dns)]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=not attributes)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Pair(
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, lasts: dt.timedelta
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + lasts)
        )


class Files:
    """The files that `tls` names, and the setting."""

    def __init__(self, directory: Path) -> None:
        self.certificate = directory / "server.crt"
        self.key = directory / "server.key"
        self.client_ca = directory / "clients.crt"
        self.setting = {"certificate": str(self.certificate), "key": str(self.key)}
        self.mutual = {**self.setting, "clientCa": str(self.client_ca)}

    def write(self, pair: Pair, *client_authorities: Authority) -> None:
        """A server's certificate, and who signs those of its clients."""
        self.certificate.write_bytes(pair.certificate)
        self.key.write_bytes(pair.key)
        self.client_ca.write_bytes(b"".join(authority.pem for authority in client_authorities))


def channel(address: str, trusted: Authority, client: Pair | None = None) -> grpc.aio.Channel:
    """A new connection to `localhost` by TLS; with a certificate of its own if one is given."""
    if client is None:
        credentials = grpc.ssl_channel_credentials(trusted.pem)
    else:
        credentials = grpc.ssl_channel_credentials(trusted.pem, client.key, client.certificate)
    options = [
        ("grpc.ssl_target_name_override", "localhost"),
        ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, not another channel's
    ]
    return grpc.aio.secure_channel(address, credentials, options)
