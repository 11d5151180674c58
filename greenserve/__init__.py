"""The installed command `greenserve`: every program of the project under one name."""
