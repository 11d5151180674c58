"""Logs of Predict requests, as TensorFlow Serving's `logging_config` asks for them: PredictionLog records in TFRecord
files."""
