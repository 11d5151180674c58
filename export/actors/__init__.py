"""Actor architectures: how weights become an inference-only function."""
