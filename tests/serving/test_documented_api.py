"""docs/reference/serving-api.md tells of every API and flag what the server does."""

import itertools
import re

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import protos
from serving.embedded.flags import parser
from tests.conftest import ROOT
from tests.serving.http_calls import call

PAGE = (ROOT / "docs" / "reference" / "serving-api.md").read_text()
PACKAGES = {"Health": "grpc.health.v1", "ServerReflection": "grpc.reflection.v1alpha"}


def table(section):
    """The rows of a section's first table, without its head, each as a list of cells."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = itertools.dropwhile(lambda line: not line.startswith("|"), text.splitlines())
    rows = list(itertools.takewhile(lambda line: line.startswith("|"), lines))[2:]
    return [[cell.strip().strip("`") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


@pytest.fixture(scope="module")
def channel(non_policy_server):
    with grpc.insecure_channel(f"127.0.0.1:{non_policy_server.port}") as channel:
        yield channel


def code(channel, service, rpc):
    package = PACKAGES.get(service, "tensorflow.serving")
    if service == "ServerReflection":
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        return grpc.StatusCode.OK if next(stub.ServerReflectionInfo(iter([request]), timeout=10)) else None
    try:
        channel.unary_unary(f"/{package}.{service}/{rpc}")(b"", timeout=10)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_documented_rpcs_exist_and_the_others_are_unimplemented(channel):
    rows = {row[0]: row[1] for row in table("gRPC")}
    for name, here in rows.items():
        assert (code(channel, *name.split(".")) is grpc.StatusCode.UNIMPLEMENTED) == (here == "UNIMPLEMENTED"), name
    path = ROOT / "protos" / "tensorflow_serving.binpb"
    files = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file
    rpcs = {f"{service.name}.{method.name}" for file in files for service in file.service for method in service.method}
    assert path.parent.name == protos.__name__ and len(rpcs) == 7
    assert rows.keys() == rpcs | {"Health.Check", "ServerReflection.ServerReflectionInfo"}


def test_flags_with_another_default_than_tensorflow_servings_are_documented(shared):
    theirs = dict(re.findall(r"^\t--(\w+)=(\S*)", (shared / "tfserving-2.20-help.txt").read_text(), re.MULTILINE))
    ours = {
        name: "" if value is None else str(value).removesuffix(".0").lower()
        for name, value in vars(parser("serve").parse_args([])).items()
    }
    differing = {name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name].strip('"')}
    documented = {row[0].removeprefix("--") for row in table("Flags")}
    assert differing == documented - {"grpc_socket_path", "monitoring_config_file"}


def test_rest_requests_are_documented_as_they_are_answered(non_policy_server):
    statuses = {}
    for row in table("REST"):
        method, path = [*row[0].split(",")[0].strip("`").split(" ", 1), "/v1/models/dtypes"][:2]
        path = re.sub(r"\[.*?\]|\.\.\.", "", path)
        path = path.replace("NAME", "dtypes") if path.startswith("/") else f"/v1/models/dtypes{path}"
        body = b'{"signature_name": "flat", "inputs": 1}' if method == "POST" else None
        status, _ = call(non_policy_server.rest_port, method, path, body, {"Origin": "https://example.org"})
        statuses[row[0]] = (status, row[1])
    assert len(statuses) == 7
    assert all(status == (200 if here == "same" else int(here)) for status, here in statuses.values()), statuses
