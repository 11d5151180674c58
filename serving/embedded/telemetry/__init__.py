"""Metrics and structured logs of the embedded server."""
