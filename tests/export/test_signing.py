"""`export --sign` and `fleet --sign`: signed last, with a key that may sign, or nothing is published."""

import base64
import json
import shutil
import sys

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from city.errors import InputError
from city.signatures import Signers
from export.__main__ import main
from export.saved_model.sign import Signer
from serving import signed_models
from tests.conftest import GRID
from tests.error_lines import assert_refused
from tests.serving.certificates import pair
from tests.serving.signed_versions import purpose, sign, usage, write_keys

pytest.importorskip("model_signing", reason="signs the models of these tests; install greenserve[signing]")
SIGNS = (usage(), purpose("CODE_SIGNING"))


@pytest.fixture
def keys(tmp_path):
    return write_keys(tmp_path)


def export(folder, *flags, code=0):
    """Export SA105 of the sample city into a folder's `models`; returns the version."""
    city, models = str(GRID / "city.toml"), folder / "models"
    assert main(["--city", city, "--tl", "SA105", "--models-dir", str(models), *map(str, flags)]) == code
    assert code == 0 or not [*models.glob("*/*")], "something was published"
    return models / "SA105" / "1"


def write_certificate(folder, chain):
    """The key of a chain's first certificate, and the chain."""
    (folder / "signer.pem").write_bytes(chain[0][0])
    (folder / "chain.pem").write_bytes(b"".join(each[1] for each in chain))
    return ["--sign", folder / "signer.pem", "--certificate", folder / "chain.pem"]


def test_an_exported_model_is_signed_for_its_tl_and_number_with_all_its_files(keys, tmp_path):
    version = export(tmp_path, "--sign", keys.private)
    signed_models.verify(version, "SA105", 1, Signers.read(keys.public))
    envelope = json.loads((version / "model.sig").read_text())["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    assert statement["subject"][0]["name"] == "SA105/1"
    names = {path.relative_to(version).as_posix() for path in version.rglob("*") if path.is_file()}
    assert {each["name"] for each in statement["predicate"]["resources"]} == names - {"model.sig"}
    assert {"assets.extra/policy.json", "assets.extra/tf_serving_warmup_requests", "saved_model.pb"} <= names


def test_an_export_without_a_key_has_no_signature(tmp_path):
    assert not (export(tmp_path) / "model.sig").exists()


def test_a_certified_model_is_verified_by_the_authority_alone(tmp_path):
    authority = pair("authority")
    issuer = pair("issuer", authority, extensions=[usage(issues=True)], is_authority=True)
    version = export(tmp_path, *write_certificate(tmp_path, [pair("signer", issuer, extensions=SIGNS), issuer]))
    (tmp_path / "authority.pem").write_bytes(authority[1])
    signed_models.verify(version, "SA105", 1, Signers.read(tmp_path / "authority.pem"))


def test_a_key_that_cannot_sign_is_refused_before_anything_is_written(keys, tmp_path, capsys):
    wide = write_keys(tmp_path, "wide", ec.SECP384R1)
    (tmp_path / "garbage.pem").write_text("x")
    for flags, message in (
        (["--sign", tmp_path / "none.pem"], "none.pem: cannot be read (No such file or directory); name a private key"),
        (["--sign", keys.public], "key.public.pem: is not a private key in PEM"),
        (["--sign", tmp_path / "garbage.pem"], "garbage.pem: is not a private key"),
        (["--sign", wide.private], "wide.pem: is not a key of the curve P-256"),
        (["--certificate", keys.public], "--certificate is for --sign"),
        (["--sign", keys.private, "--certificate", keys.public], "key.public.pem: cannot be used with"),
        (["--sign", keys.private, "--certificate", tmp_path / "none.pem"], "none.pem: cannot be read"),
    ):
        export(tmp_path, *flags, code=2)
        assert_refused(capsys, message)


def test_a_certificate_that_cannot_sign_is_refused_before_anything_is_written(tmp_path, capsys):
    authority, expired = pair("authority"), -pair.__defaults__[1] / 24
    for chain, message in (
        ([pair("signer", authority, expired, SIGNS)], "chain.pem: it expired "),
        ([pair("signer", authority)], "missing required extension"),
        ([pair("signer", authority, extensions=SIGNS), pair("other")], "is not valid by"),
    ):
        flags = write_certificate(tmp_path, chain)
        with pytest.raises(InputError):
            Signer(flags[1], flags[3])  # already when it is read, not at the first model of 1,000
        export(tmp_path, *flags, code=2)
        assert_refused(capsys, message)
    flags = write_certificate(tmp_path, [pair("signer", authority, extensions=SIGNS)])
    export(tmp_path, "--sign", write_keys(tmp_path, "foreign").private, *flags[2:], code=2)
    assert_refused(capsys, "chain.pem: cannot be used with", "does not match")


def test_a_missing_package_is_named(keys, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "model_signing", None)
    export(tmp_path, "--sign", keys.private, code=2)
    assert_refused(capsys, "--sign needs the packages model-signing and pyopenssl; install greenserve[signing]")


def test_a_fleet_is_signed_if_the_models_in_it_are(grid_models, keys, tmp_path, capsys):
    models = tmp_path / "models"
    for tl in ("SA103", "SA105"):
        shutil.copytree(grid_models / tl, models / tl)
    sign(models / "SA103" / "1", keys, "SA103", 1)
    build = ["fleet", "city", "--tl", "all", "--models-dir", str(models), "--sign"]
    assert main([*build, str(keys.private)]) == 2 and not (models / "city").exists()
    assert_refused(capsys, f"{models / 'SA105' / '1'}: is not signed")
    sign(models / "SA105" / "1", keys, "SA105", 1)
    assert main([*build, str(write_keys(tmp_path, "other").private)]) == 2 and not (models / "city").exists()
    assert_refused(capsys, f"{models / 'SA103' / '1'}: is not signed by")
    assert main([*build, str(keys.private)]) == 0
    signed_models.verify(models / "city" / "1", "city", 1, Signers.read(keys.public))
