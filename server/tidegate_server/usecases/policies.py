"""The policy in force."""

from tidegate_server.core.policy import Policy


class Policies:
    """Holds the one policy that decisions are made under. It is swapped whole; who reads it once sees one policy."""

    def __init__(self, policy: Policy) -> None:
        self.current = policy
