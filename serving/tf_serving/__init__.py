"""TensorFlow Serving's configuration files for a folder of models."""
