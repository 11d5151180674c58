"""Mutants of signals/safety that no test can kill, by name, each with the reason."""

EQUIVALENT_MUTANTS: dict[str, str] = {}
