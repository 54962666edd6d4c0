"""Valkey, or Redis 7 and newer: the shared mode's live stores (§12 of the contract)."""
