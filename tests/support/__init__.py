"""What the suites share."""
