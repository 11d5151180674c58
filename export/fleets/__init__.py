"""One SavedModel out of the actors of many TLs."""
