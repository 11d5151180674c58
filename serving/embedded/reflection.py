"""gRPC reflection: lets grpcurl and the like find out what can be asked.

It tells TensorFlow Serving's own descriptors, out of a pool of their own.
"""

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

import protos

_DESCRIPTORS = Path(protos.__file__).with_name("tensorflow_serving.binpb")


def add_to(server: Any, services: tuple[str, ...]) -> None:
    """Tell these services."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes()).file:
        pool.Add(file)
    for module in (health_pb2, reflection_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    reflection.enable_server_reflection((*services, reflection.SERVICE_NAME), server, pool=pool)
