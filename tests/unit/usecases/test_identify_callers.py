"""Who calls (§13 of the contract): tokens, certificates, this machine's own."""

import hashlib

import pytest
from tidegate_server.core.model import Caller
from tidegate_server.errors import CredentialInvalid, IdentityRequired
from tidegate_server.usecases.identify import LOCAL_CALLER, CertificateName, Identify, Identity, local_identity

SPIFFE_B, NOBODY = CertificateName("spiffe", "spiffe://x/b"), CertificateName("spiffe", "spiffe://x/none")
DNS_C = CertificateName("dns", "c.example.org")
A, B, C = (Caller(name) for name in "abc")
KNOWN = [
    Identity(A, hashlib.sha256(b"token-a").digest()),
    Identity(B, certificate=SPIFFE_B),
    Identity(C, certificate=DNS_C),
]
OPEN, CLOSED = Identify(KNOWN, open_to_local=True), Identify(KNOWN, open_to_local=False)


def test_a_token_names_its_identity_and_its_scheme_has_no_case() -> None:
    for authorization in ("Bearer token-a", "bearer token-a", "BEARER  token-a "):
        assert CLOSED(authorization, (), identity_needed=True) == A


@pytest.mark.parametrize("authorization", ["Bearer token-b", "Bearer ", "Bearer", "Basic token-a", "token-a"])
def test_a_credential_of_nobody_is_never_the_local_caller(authorization: str) -> None:
    for identify in (OPEN, CLOSED):
        with pytest.raises(CredentialInvalid):
            identify(authorization, (SPIFFE_B,), identity_needed=False)


def test_the_first_known_name_of_a_certificate_counts() -> None:
    assert CLOSED("", (NOBODY, DNS_C), identity_needed=True) == C
    assert CLOSED("", (SPIFFE_B, DNS_C), identity_needed=True) == B


def test_a_name_of_another_kind_is_another_name() -> None:
    with pytest.raises(CredentialInvalid):
        CLOSED("", (CertificateName("cn", "spiffe://x/b"),), identity_needed=True)


def test_who_is_still_somebody() -> None:
    assert OPEN.knows(A)
    assert not OPEN.knows(A._replace(namespace="other"))
    assert (OPEN.knows(LOCAL_CALLER), CLOSED.knows(LOCAL_CALLER)) == (True, False)


def test_a_token_counts_before_a_certificate() -> None:
    assert CLOSED("Bearer token-a", (SPIFFE_B,), identity_needed=True) == A


def test_no_credential_is_this_machine_only_where_that_is_enough() -> None:
    assert OPEN("", (), identity_needed=False) == LOCAL_CALLER
    for identify, needed in ((OPEN, True), (CLOSED, False), (CLOSED, True)):
        with pytest.raises(IdentityRequired):
            identify("", (), identity_needed=needed)
    with pytest.raises(CredentialInvalid):
        CLOSED("", (NOBODY,), identity_needed=False)


def test_an_identity_without_a_token_is_opened_by_no_empty_one() -> None:
    empty = Identify([Identity(A, certificate=CertificateName("cn", "a"))], open_to_local=False)
    with pytest.raises(CredentialInvalid):
        empty("Bearer x", (), identity_needed=False)


def test_the_local_token_has_every_role_and_provider() -> None:
    caller = Identify([local_identity("t")], open_to_local=True)("Bearer t", (), identity_needed=True)
    assert caller.roles == {"gateway", "collector", "operator", "viewer"}
    assert (caller.providers, caller.namespace, caller.start_flows) == (None, "default", True)
