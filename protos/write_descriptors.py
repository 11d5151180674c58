"""Write protos/tensorflow_serving.binpb: descriptors of TensorFlow Serving's services, for gRPC reflection.

    python -m protos.write_descriptors      (part of `make protos`)

They are copied from tensorflow-serving-api, because its import at every start of the server
would load TensorFlow: seconds, and hundreds of MB.
"""

import contextlib
import importlib
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool

from protos.descriptors import add_file

PATH = Path(__file__).with_name("tensorflow_serving.binpb")


def main() -> None:
    for name in ("prediction_service_pb2", "model_service_pb2"):
        # with protobuf 7, model_service_pb2 raises at its end, after it has added its descriptor
        with contextlib.suppress(AttributeError):
            importlib.import_module(f"tensorflow_serving.apis.{name}")

    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    for name in ("prediction_service", "model_service"):
        add_file(descriptor_pool.Default().FindFileByName(f"tensorflow_serving/apis/{name}.proto"), files)
    PATH.write_bytes(descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
