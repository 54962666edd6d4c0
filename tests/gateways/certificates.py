"""Certificates for one test: an authority, a server's and a client's certificate."""

import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.conformance.clients import needs


class Pair(NamedTuple):
    """A certificate and its key, PEM files."""

    certificate: Path
    key: Path


def authority(directory: Path, name: str = "ca") -> Pair:
    """An authority of its own."""
    needs("openssl", "the openssl command")
    pair = Pair(directory / f"{name}.pem", directory / f"{name}.key")
    _openssl("req", "-x509", "-newkey", "ed25519", "-noenc", "-keyout", pair.key, "-out", pair.certificate,
             "-subj", f"/CN={name}", "-days", "2")  # fmt: skip
    return pair


def signed(by: Pair, directory: Path, name: str, alternative: str) -> Pair:
    """A certificate with this alternative name (`IP:127.0.0.1`, `DNS:edge`)."""
    pair = Pair(directory / f"{name}.pem", directory / f"{name}.key")
    _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-keyout", pair.key,
             "-out", pair.certificate, "-subj", f"/CN={name}", "-days", "2", "-addext", f"subjectAltName={alternative}",
             "-addext", "basicConstraints=critical,CA:false", "-CA", by.certificate, "-CAkey", by.key)  # fmt: skip
    return pair


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
