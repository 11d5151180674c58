"""Descriptors of messages and services, as files hold them."""

from typing import Any

from google.protobuf import descriptor_pb2


def add_file(file: Any, files: dict[str, descriptor_pb2.FileDescriptorProto]) -> None:
    """Add a file's descriptor after those of its imports."""
    for dependency in file.dependencies:
        add_file(dependency, files)
    if file.name not in files:
        files[file.name] = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(files[file.name])
