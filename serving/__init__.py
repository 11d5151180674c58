"""Policy contract, tensors, errors and client, all without TensorFlow; and `embedded`, a server with
TensorFlow Serving's API.
"""
