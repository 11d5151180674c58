"""gRPC server reflection, with TensorFlow Serving's own descriptors, for grpcurl and similar tools."""

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

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
    servicer: Any = reflection.ReflectionServicer((*services, reflection.SERVICE_NAME), pool=pool)
    servicer.ServerReflectionInfo = functools.partial(servicer.ServerReflectionInfo)
    # grpc reads this attribute, which a bound method could not have
    servicer.ServerReflectionInfo.experimental_thread_pool = ThreadPoolExecutor(MAX_STREAMS, "reflection")
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
