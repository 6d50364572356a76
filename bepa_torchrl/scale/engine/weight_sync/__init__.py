"""What an engine is given at a weight sync (folder, adapters), and the check of its weights afterwards (probe)."""
