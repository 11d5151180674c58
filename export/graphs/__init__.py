"""Actors extracted from a trainer's own graph: MetaGraphs, SavedModels, Keras models, a user's builder."""
