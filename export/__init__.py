"""The exporter: checkpoint files -> an inference-only SavedModel that is proved.

Reading order: __main__ -> locate -> checkpoints/ -> actors/ -> contract ->
saved_model -> warmup -> verify -> publish.
"""
