"""Serving: policy contract, tensors, errors and the lean client (no TensorFlow
in these four), and `embedded`, a server with TensorFlow Serving's API.
"""
