"""Commands that show a model or a checkpoint to a person."""
