"""The exporter: checkpoint files -> an inference-only SavedModel with a parity check.

Reading order: __main__ -> config -> single_model, which calls locate, contract, rebuild
(checkpoints/, graphs/, actors/) and saved_model/ (write, warmup, verify, manifest,
publish).
"""
