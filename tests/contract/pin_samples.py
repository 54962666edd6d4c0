"""Pins to store."""

import hashlib

from tidegate_server.core.model import Pin, Tier


def make_pin(
    name: str,
    *,
    candidate: str = "claude-primary/claude-sonnet-5-5",
    route: str = "managed/routine",
    namespace: str = "default",
    policy: str = "p" * 64,
) -> Pin:
    """A pin whose id is made from `name`."""
    provider, model = candidate.split("/", 1)
    return Pin(
        pin_id=hashlib.blake2b(name.encode(), digest_size=32).digest(),
        namespace=namespace,
        route=route,
        candidate=candidate,
        provider=provider,
        model=model,
        tier=Tier.SUBSCRIPTION,
        credential_source="claude-oauth:primary",
        policy_fingerprint=policy,
        binding_fingerprint=hashlib.sha256(candidate.encode()).hexdigest(),
        create_time=1_750_000_000_123_456_789,
    )
