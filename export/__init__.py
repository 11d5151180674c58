"""The exporter: checkpoint files -> an inference-only SavedModel with a parity check.

Reading order: __main__ -> config -> single_model, which calls locate, rebuild
(checkpoints/, graphs/, actors/) and saved_model/ (write, verify, manifest, sign, publish).
"""
