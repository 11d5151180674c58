"""A server that answers whatever a test says; nothing real does so on purpose."""

from concurrent import futures

import grpc
import numpy as np

from protos import predict_pb2 as wire
from serving.tensors import to_proto


class Fake:
    def __init__(self, path=""):
        """`path`: of a Unix socket to listen on instead of a port; gRPC's own server does so as TensorFlow Serving does."""
        self.answer = lambda request, context: b""
        server = grpc.server(futures.ThreadPoolExecutor(4))
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(lambda request, context: self.answer(request, context))
            for name in ("Predict", "GetModelMetadata")
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tensorflow.serving.PredictionService", handlers),))
        port = server.add_insecure_port(f"unix:{path}" if path else "127.0.0.1:0")
        self.address = f"unix:{path}" if path else f"127.0.0.1:{port}"
        server.start()
        self.stop = lambda: server.stop(None).wait()


def answer(**outputs):
    response = wire.PredictResponse()
    response.model_spec.version.value = outputs.pop("version", 1)
    for key, array in outputs.items():
        to_proto(np.asarray(array), response.outputs[key])
    return response.SerializeToString()
