"""Reads the records of controlled runs: shown, exported, repaired, replayed and played in a browser."""
