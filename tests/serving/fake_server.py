"""A gRPC server whose responses, valid or not, are chosen by the test."""

from concurrent import futures

import grpc
import numpy as np

from protos import predict_pb2 as wire
from serving.tensors import to_proto


class Fake:
    def __init__(self, path=""):
        """`path`: Unix socket to listen on; empty: a port. Assign `answer` to choose the responses."""
        self.answer = lambda request, context: b""
        server = grpc.server(futures.ThreadPoolExecutor(4))
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(lambda request, context: self.answer(request, context))
            for name in ("Predict", "GetModelMetadata")
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("tensorflow.serving.PredictionService", handlers),)
        )
        port = server.add_insecure_port(f"unix:{path}" if path else "127.0.0.1:0")
        self.address = f"unix:{path}" if path else f"127.0.0.1:{port}"
        server.start()
        self.stop = lambda: server.stop(None).wait()


def answer(**outputs):
    """A serialized PredictResponse with these outputs, and the version if one is given."""
    response = wire.PredictResponse()
    response.model_spec.version.value = outputs.pop("version", 1)
    for key, array in outputs.items():
        to_proto(np.asarray(array), response.outputs[key])
    return response.SerializeToString()
