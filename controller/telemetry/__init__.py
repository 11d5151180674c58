"""Health, metrics and the log of a run."""
