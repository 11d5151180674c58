"""The exporter: checkpoint files -> an inference-only SavedModel with a parity check.

Reading order: __main__ -> locate -> checkpoints/ -> actors/ -> contract ->
saved_model -> warmup -> verify -> publish.
"""
