"""The embedded server: TensorFlow Serving's gRPC and REST APIs over folders of SavedModels.

Main path: __main__ -> server -> rpc/grpc_method -> rpc/predict -> models/manager ->
tensorflow/session -> tensorflow/library (TensorFlow's C API). models/version_policy
decides which versions to load and unload; `status` holds the errors with their gRPC codes.
"""
