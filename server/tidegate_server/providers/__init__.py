"""Adapters of the two ports of agent selection, Embedder and Selector. They know no wire, no store and no use case."""
