"""docs/record-layout.json, the layout for Foxglove and Lichtblick: its paths are those of the record's schema."""

import json
import re

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FieldDescriptor
from mcap.reader import make_reader

from tests.conftest import ROOT

LAYOUT = json.loads((ROOT / "docs" / "record-layout.json").read_text())
PATHS = [path["value"] for config in LAYOUT["configById"].values() for path in config.get("paths", [])]
"""Of bands and plots, which draw single values."""
MESSAGES = [config["topicPath"] for config in LAYOUT["configById"].values() if "topicPath" in config]


@pytest.fixture(scope="module")
def schemas(recorded_city, tmp_path_factory):
    """By topic, the type that the file's own schema describes."""
    path = recorded_city.write(tmp_path_factory.mktemp("layout") / "x.mcap", 0, 5)
    types = {}
    with path.open("rb") as file:
        summary = make_reader(file).get_summary()
    for channel in summary.channels.values():
        schema = summary.schemas[channel.schema_id]
        assert (schema.encoding, channel.message_encoding) == ("protobuf", "protobuf")
        pool = descriptor_pool.DescriptorPool()
        for each in descriptor_pb2.FileDescriptorSet.FromString(schema.data).file:
            pool.Add(each)  # fails if a file comes before one that it imports
        types[channel.topic] = pool.FindMessageTypeByName(schema.name)
    return types


def field_of(schemas, path):
    """The last field of a path. Raises KeyError if it is not in the schema."""
    topic, *names = re.split(r"\.(?=[a-z_]+)", path)
    kind = schemas[topic]
    for each in names:
        name, index = re.fullmatch(r"(\w+)(\[(?:\d+|:)\])?", each).groups()
        field = kind.fields_by_name[name]
        assert field.is_repeated == (index is not None), f"{path}: {name}"
        kind = field.message_type
    return field


@pytest.mark.parametrize("path", [*PATHS, *MESSAGES])
def test_path_of_a_band_or_plot_is_a_single_value_and_other_paths_are_messages(schemas, path):
    assert (field_of(schemas, path).message_type is None) == (path in PATHS)


def test_mode_and_override_are_enums_and_permitted_is_a_text_so_that_they_are_bands(schemas):
    kinds = [field_of(schemas, f"/tl/SA101.{name}").type for name in ("mode", "override", "states[0].permitted[0]")]
    assert kinds == [FieldDescriptor.TYPE_ENUM, FieldDescriptor.TYPE_ENUM, FieldDescriptor.TYPE_STRING]
    bands = [path["value"] for path in LAYOUT["configById"]["StateTransitions!tl"]["paths"]]
    assert {f"/tl/SA101.{name}" for name in ("mode", "override", "states[0].permitted[0]")} <= set(bands)


def test_every_panel_is_placed_once():
    def placed(part):
        return [part] if isinstance(part, str) else [*placed(part["first"]), *placed(part["second"])]

    assert sorted(placed(LAYOUT["layout"])) == sorted(LAYOUT["configById"])
