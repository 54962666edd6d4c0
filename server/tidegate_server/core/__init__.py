"""The pure core: it decides, and does nothing else. No I/O, no clock, no randomness; `now` is an argument."""
