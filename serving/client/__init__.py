"""A lean client of TensorFlow Serving's gRPC API: NumPy in, NumPy out, no TensorFlow.

`from serving.client import Client`; docs/reference/client.md describes addresses, deadlines,
retries, TLS and errors.
"""

from serving.client.channel import Tls
from serving.client.client import Client
from serving.client.fleet import Fleet, ScoredAction
from serving.client.messages import Prediction, Version

__all__ = ["Client", "Fleet", "Prediction", "ScoredAction", "Tls", "Version"]
