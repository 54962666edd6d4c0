"""Proving a policy before it is deployed: every state that it can see, and the promises that hold in each."""

from tidegate_server.core.prove.promises import PROMISES, Promise
from tidegate_server.core.prove.proof import Counterexample, RouteProof, prove_route

__all__ = ["PROMISES", "Counterexample", "Promise", "RouteProof", "prove_route"]
