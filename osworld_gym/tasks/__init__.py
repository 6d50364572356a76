"""Tasks: OSWorld's JSON, setup steps, verification, suites, and the oracles that solve our own."""
