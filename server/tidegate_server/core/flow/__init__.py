"""The flow guard's rules (§8 of the contract): trace context, signed ancestry, limits. Pure, like all of the core."""
