"""Exports a run's episodes with their images, token ids and log-probs: ATIF, JSON lines, a Hugging Face data set."""
