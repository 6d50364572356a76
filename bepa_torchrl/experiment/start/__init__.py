"""The start of a run: what can be checked before anything is prepared or written. Imports no torch."""
