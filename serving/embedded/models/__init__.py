"""Which models and versions are served, and how they come to be."""
