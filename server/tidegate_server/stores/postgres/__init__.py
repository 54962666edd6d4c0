"""PostgreSQL: the shared mode's durable stores (§12 of the contract)."""
