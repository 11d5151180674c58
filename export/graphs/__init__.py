"""Actors cut out of a trainer's own graph: MetaGraphs, SavedModels, Keras models, a user's builder."""
