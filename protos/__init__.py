"""Protobuf messages: the policy contract (policy.proto) and TensorFlow Serving's wire subset (the others)."""
