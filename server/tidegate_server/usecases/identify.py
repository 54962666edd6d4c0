"""Who calls (§13 of the contract): a bearer token or a client certificate names an identity."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from tidegate_server.core.model import Caller
from tidegate_server.errors import CredentialInvalid, IdentityRequired

EVERY_ROLE = frozenset({"gateway", "collector", "operator", "viewer"})

LOCAL_CALLER = Caller("", "default", frozenset({"gateway"}), None, start_flows=True)
"""Without `identities`: whoever calls from this machine."""


_SEEN = 1_000
"""Good credentials that are known again without a hash. A dict compares a key only where its own secret hash agrees."""


class CertificateName(NamedTuple):
    """One name that a client certificate bears: its kind, and the name in UTF-8.

    The kind is part of it: who may choose a common name, must not thereby choose a SPIFFE id.
    """

    kind: Literal["spiffe", "dns", "cn"]
    name: str


class Identity(NamedTuple):
    """A configured identity: its caller, and what proves it. A token is known by its SHA-256 only."""

    caller: Caller
    token_sha256: bytes = b""
    certificate: CertificateName | None = None


def local_identity(token: str) -> Identity:
    """The identity of `local.token`: every role and provider, for the commands and collectors of the same user."""
    caller = Caller("local", "default", EVERY_ROLE, None, start_flows=True)
    return Identity(caller, hashlib.sha256(token.encode()).digest())


class Identify:
    """Finds the caller. `open_to_local`: callers without a credential are this machine's own gateway."""

    def __init__(self, identities: Iterable[Identity], *, open_to_local: bool) -> None:
        known = tuple(identities)
        self._seen: dict[str, Caller] = {}
        self._tokens = tuple((i.token_sha256, i.caller) for i in known if i.token_sha256)
        self._certificates = {i.certificate: i.caller for i in known if i.certificate is not None}
        self._open_to_local = open_to_local
        self._callers = frozenset(i.caller for i in known)

    def knows(self, caller: Caller) -> bool:
        """Whether that caller is still somebody, with just these rights: a stream outlives what opened it."""
        return caller in self._callers or (self._open_to_local and caller == LOCAL_CALLER)

    def __call__(
        self, authorization: str, certificate_names: Sequence[CertificateName], *, identity_needed: bool
    ) -> Caller:
        """The caller with this credential. `certificate_names` in the order of preference: SPIFFE id, DNS, CN.

        A token says more than a certificate: a certificate may be the machine's, a token is the caller's.

        Raises CredentialInvalid when the credential is nobody's, IdentityRequired when there is none and it is needed.
        """
        if authorization:
            return self._seen.get(authorization) or self._by_token(authorization)
        for name in certificate_names:
            if name in self._certificates:
                return self._certificates[name]
        if identity_needed or not self._open_to_local:
            raise CredentialInvalid if certificate_names else IdentityRequired
        return LOCAL_CALLER

    def _by_token(self, authorization: str) -> Caller:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise CredentialInvalid
        digest = hashlib.sha256(token.strip().encode()).digest()
        found = None
        for known, caller in self._tokens:  # all of them, so that time tells nothing
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise CredentialInvalid
        if len(self._seen) < _SEEN:  # how often a good token is spelled differently, is its owner's choice
            self._seen[authorization] = found
        return found
