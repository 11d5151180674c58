"""Brings a new model number onto the street, one TL at a time and on evidence, and keeps the ledger of it."""
