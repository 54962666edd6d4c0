"""One module a provider: pure functions from an answer to facts."""
