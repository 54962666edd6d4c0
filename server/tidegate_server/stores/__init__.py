"""Adapters of the ports: memory, SQLite, PostgreSQL, Valkey. They know no wire, no use case, and never each other."""
