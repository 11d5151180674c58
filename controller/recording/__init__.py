"""The record: a run's decision events in files, and what can be done with them."""
