"""The embedded server: TensorFlow Serving's gRPC API over a folder of SavedModels.

Main path: __main__ -> server -> predict_impl -> model_manager -> session (the
only file that imports TensorFlow). Decisions about versions are in
version_policy; one file per RPC; status is where an error becomes a gRPC status.
"""
