"""The embedded server: TensorFlow Serving's gRPC and REST APIs over folders of SavedModels.

Main path: __main__ -> server -> grpc_method -> predict_impl -> model_manager ->
session -> tensorflow_library (TensorFlow's C API). Decisions about versions are in
version_policy; one file per RPC; status is where an error becomes a status.
"""

from importlib import metadata

VERSION = metadata.version("greenserve")
