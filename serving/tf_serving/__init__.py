"""TensorFlow Serving in a container: image, compose file, and the config that is written for it."""
