"""TensorFlow through its C API: the shared library, and a loaded SavedModel."""
