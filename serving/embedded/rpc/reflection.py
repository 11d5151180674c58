"""gRPC server reflection, with TensorFlow Serving's own descriptors, for grpcurl and similar tools."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

import protos

MAX_STREAMS = 4
"""Concurrent reflection streams. Each occupies a thread, so they have a pool of their own."""
_DESCRIPTORS = Path(protos.__file__).with_name("tensorflow_serving.binpb")


def add_to(server: Any, services: tuple[str, ...]) -> None:
    """Add the reflection service, which lists these services."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes()).file:
        pool.Add(file)
    for module in (health_pb2, reflection_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    servicer = reflection.ReflectionServicer((*services, reflection.SERVICE_NAME), pool=pool)

    def info(requests: Any, context: Any) -> Any:
        return servicer.ServerReflectionInfo(requests, context)

    info.experimental_thread_pool = ThreadPoolExecutor(MAX_STREAMS, "reflection")  # type: ignore[attr-defined]  # grpc reads it
    method = grpc.stream_stream_rpc_method_handler(
        info,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, {"ServerReflectionInfo": method})
    server.add_generic_rpc_handlers((handlers,))
