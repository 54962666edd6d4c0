"""Collectors: what reads a provider's capacity and tells the server, truthfully.

Parsing is apart from polling. `providers` and `generic` are pure: bytes, headers and an instant go in, facts or a
collector's error come out (`facts.Reading`). Everything that touches a socket, a file or a clock is in `poll`, `feed`,
`observer` and `service`. The server is spoken to by its Python client only.
"""
