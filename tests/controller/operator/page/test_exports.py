"""Where the model that answers comes from: its contract's origin, and the export manifest if it is of the same
export."""

import json
import os
import shutil

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.operator.page.exports import MANIFEST, RETRY_S, Exports
from protos import policy_pb2 as pb
from serving.contract import JSON_FILE

SHOWN = "models/SA101/1/assets.extra/export.json"
DAMAGED = {"empty": b"", "bytes": b"\xff\xfe", "a list": b"[]", "nested": b"[" * 100_000, "cut": b'{"tl": 1'}


class Contracts:
    """Policies that know one contract of every version."""

    def __init__(self, contract):
        self.contract, self.asked = contract, 0

    def contract_of(self, tl, model, version):
        self.asked += 1
        return self.contract


@pytest.fixture
def models(grid_models, tmp_path):
    """A folder with the sample city's version 1 of SA101."""
    shutil.copytree(grid_models / "SA101", tmp_path / "models" / "SA101")
    return tmp_path / "models"


def contract_of(models):
    return json_format.Parse((models / "SA101" / "1" / JSON_FILE).read_text(), pb.PolicyContract())


def exports(models, contract=None, now=lambda: 0.0):
    return Exports(Contracts(contract or contract_of(models)), models, now)


def test_the_manifest_of_the_served_export_is_shown_with_its_parity_check(models):
    found = exports(models).of("SA101", "SA101", 1)
    content = json.loads((models / "SA101" / "1" / MANIFEST).read_text())
    assert found["origin"]["file_name"] == content["source"]["name"] and found["why"] == ""
    manifest = found["manifest"]
    assert manifest["path"] == SHOWN
    assert manifest["parity"]["observations"] == content["parity"]["observations"] > 0
    assert 0 <= manifest["parity"]["difference"] <= manifest["parity"]["permitted"]
    assert manifest["files"] == [file["name"] for file in content["source"]["files"]]


@pytest.mark.parametrize(
    ("replace", "why"),
    [
        pytest.param(lambda path: None, "this machine has no models/SA101/1/", id="missing"),
        pytest.param(os.mkfifo, f"{SHOWN} is not a regular file", id="a FIFO, which would block the page"),
        *(
            pytest.param(lambda path, content=content: path.write_bytes(content), f"{SHOWN} is damaged", id=name)
            for name, content in DAMAGED.items()
        ),
    ],
)
def test_without_a_manifest_the_page_says_why_and_has_the_contracts_origin(models, replace, why):
    path = models / "SA101" / "1" / MANIFEST
    path.unlink()
    replace(path)
    found = exports(models).of("SA101", "SA101", 1)
    assert found["manifest"] is None and why in found["why"]
    assert found["origin"]["sha256"]


def test_a_manifest_of_another_export_is_not_shown_and_of_a_fleet_that_of_the_tls_own_model(models):
    contract = contract_of(models)
    assert exports(models, contract).of("SA101", "city", 1)["manifest"]["path"] == SHOWN
    contract.origin.exported_at = "2020-01-01T00:00:00+00:00"
    found = exports(models, contract).of("SA101", "SA101", 1)
    assert found["manifest"] is None and "is of another export than the model that is served" in found["why"]


def test_a_file_is_read_once_and_again_after_a_while(models):
    now = [0.0]
    looked_up = exports(models, now=lambda: now[0])
    (models / "SA101" / "1" / MANIFEST).rename(models / "aside")
    assert looked_up.of("SA101", "SA101", 1)["manifest"] is None
    (models / "aside").rename(models / "SA101" / "1" / MANIFEST)
    assert looked_up.of("SA101", "SA101", 1)["manifest"] is None and looked_up._policies.asked == 1
    now[0] = RETRY_S
    assert looked_up.of("SA101", "SA101", 1)["manifest"] is not None
    assert looked_up.of("SA101", "SA101", 2)["manifest"] is None  # another version is looked up at once


def test_a_run_without_models_and_a_tl_without_an_answer_have_none(models):
    assert Exports(None, models).of("SA101", "", 0) == {}
    assert exports(models).of("SA101", "", 0) == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)
KEYS = ("source", "parity", "actor", "variables", "versions", "scope", "tl", "exported_at")


@settings(max_examples=25)
@given(
    st.sampled_from(
        [(key,) for key in KEYS] + [("parity", "observations"), ("parity", "reference"), ("source", "files")]
    ),
    JSON,
)
def test_a_damaged_manifest_is_shown_in_part_or_refused(tmp_path_factory, grid_models, keys, value):
    content = json.loads((grid_models / "SA101" / "1" / MANIFEST).read_text())
    at = content
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    folder = tmp_path_factory.getbasetemp() / "damaged"
    path = folder / "SA101" / "1" / MANIFEST
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    found = exports(folder, contract_of(grid_models)).of("SA101", "SA101", 1)
    json.dumps(found, allow_nan=False)  # as a frame does
    assert (found["manifest"] is None) == bool(found["why"])
