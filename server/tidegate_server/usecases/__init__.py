"""One class a verb: read the ports, ask the core, write the ports."""
