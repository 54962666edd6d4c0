"""The wire: map, call, map back. Nothing is decided here."""
