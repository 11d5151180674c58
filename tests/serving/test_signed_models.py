"""Signatures of models: whose are accepted, that a version is the one that was signed, and servers that require them."""

import datetime
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from city.errors import InputError
from city.signatures import Signers
from protos.predict_pb2 import ModelVersionStatus
from serving import signed_models
from serving.__main__ import main
from serving.client import Client
from serving.embedded.config import ServerConfig
from serving.embedded.flags import parse
from serving.embedded.models.model_config import ModelConfig
from tests.conftest import ROOT
from tests.error_lines import assert_refused
from tests.serving.certificates import pair
from tests.serving.conftest import running
from tests.serving.signed_versions import Keys, edit, purpose, sign, usage, write_keys, write_version

EXPIRED = datetime.timedelta(seconds=-1)
library = pytest.importorskip("model_signing", reason="signs the models of these tests; install greenserve[signing]")


@pytest.fixture
def keys(tmp_path):
    return write_keys(tmp_path)


@pytest.fixture
def version(tmp_path, keys):
    """A signed version, models/SA101/3."""
    folder = write_version(tmp_path / "models" / "SA101" / "3")
    sign(folder, keys)
    return folder


def verify(version, keys, tl="SA101", number=3, copy_to=None):
    signed_models.verify(version, tl, number, Signers.read(keys.public), copy_to)


def refused(version, keys, match, **arguments):
    """Verified if there is no reason to refuse it."""
    if match is None:
        return verify(version, keys, **arguments)
    with pytest.raises(InputError, match=match) as error:
        verify(version, keys, **arguments)
    assert str(error.value).startswith(f"{version}: ")


def test_a_signed_version_is_verified_by_us_and_by_model_signing(version, keys):
    verify(version, keys)
    config = library.verifying.Config().use_elliptic_key_verifier(public_key=keys.public)
    config.verify(version, version / "model.sig")


def test_what_model_signings_command_has_signed_is_verified(version, keys):
    (version / "model.sig").unlink()
    command = [sys.executable, "-m", "model_signing", "sign", "key", version, "--private_key", keys.private]
    subprocess.run([*command, "--signature", version / "model.sig"], check=True, cwd=ROOT)
    verify(version, keys)


def test_signature_does_not_fit_another_tl_or_number(version, keys):
    refused(version, keys, "is signed as model 3 of SA101, not 3 of SA102", tl="SA102")
    refused(version, keys, "is signed as model 3 of SA101, not 4 of SA101", number=4)


def test_files_that_model_signing_ignores_are_signed_too(version, keys):
    (version / ".gitignore").write_text("x")
    sign(version, keys)
    verify(version, keys)


def remove(name):
    return lambda version: (version / name).unlink()


def put(name, content="x"):
    return lambda version: (version / name).write_text(content)


def link(version):
    (version / "saved_model.pb").rename(version.parent / "moved.pb")
    (version / "saved_model.pb").symlink_to(version.parent / "moved.pb")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove("model.sig"), "is not signed: model.sig is missing"),
        (remove("variables/variables.data-00000-of-00001"), "variables.data-00000-of-00001 missing.*half copied"),
        (put("variables/variables.index"), "variables/variables.index was changed after it was signed"),
        (put("assets.extra/policy.json", "{}"), "policy.json was changed after"),
        (put("assets.extra/tf_serving_warmup_requests"), "tf_serving_warmup_requests added after it was signed"),
        (put(".gitattributes"), ".gitattributes added after"),
        (link, "saved_model.pb is not a regular file"),
        (lambda version: os.mkfifo(version / "fifo"), "fifo is not a regular file"),
        (shutil.rmtree, "is not signed"),
    ],
)
def test_a_version_that_was_changed_is_refused(version, keys, change, message):
    change(version)
    refused(version, keys, message)


@pytest.mark.parametrize(
    "content", ["", "x", "{}", "[]", "1", '{"dsseEnvelope": [], "verificationMaterial": 3}', "[" * 9999, None]
)
def test_a_signature_that_is_garbage_or_cut_off_is_refused_in_one_line(version, keys, content):
    whole = (version / "model.sig").read_bytes()
    parts = [whole[:size] for size in range(0, len(whole), 97)]
    for part in parts if content is None else [content.encode()]:
        (version / "model.sig").write_bytes(part)
        refused(version, keys, "model.sig is not a signature of model-signing")


def test_a_signature_by_another_key_is_refused(version, keys, tmp_path):
    refused(version, write_keys(tmp_path, "other"), "is not signed by .*other.public.pem")
    both = tmp_path / "both.pem"
    both.write_bytes(write_keys(tmp_path, "next").public.read_bytes() + keys.public.read_bytes())
    verify(version, Keys(keys.private, both))


def test_a_statement_that_was_changed_or_is_of_another_kind_is_refused(version, keys):
    def retarget(_, statement):
        statement["subject"][0]["name"] = "SA102/3"

    def rename_type(_, statement):
        statement["predicateType"] = "https://example.org/other"

    def shorten(_, statement):
        statement["predicate"]["resources"][0]["algorithm"] = "sha1"

    original = (version / "model.sig").read_bytes()
    for change, private_key, message in (
        (lambda *_: None, keys.private, None),
        (retarget, None, "is not signed by"),
        (rename_type, keys.private, "is not a signature of model-signing"),
        (shorten, keys.private, "is not a signature of model-signing"),
        (lambda bundle, _: bundle["dsseEnvelope"].update(signatures=[]), None, "is not a signature of model-signing"),
    ):
        (version / "model.sig").write_bytes(original)
        edit(version, change, private_key)
        refused(version, keys, message)


def test_the_copy_holds_the_verified_bytes(version, keys, tmp_path):
    copy = tmp_path / "copy"
    verify(version, keys, copy_to=copy)
    names = {path.relative_to(version) for path in version.rglob("*") if path.is_file()}
    assert {path.relative_to(copy) for path in copy.rglob("*") if path.is_file()} == {
        name for name in names if name.name != "model.sig"
    }
    assert all((copy / name).read_bytes() == (version / name).read_bytes() for name in names if (copy / name).exists())


def certified(folder, chain, listed, signs_with=None):
    """Sign models/SA101/3 with the first certificate of a chain; returns the version, and its listed signers."""
    key, certificate, trusted = folder / "signer.pem", folder / "chain.pem", folder / "trusted.pem"
    key.write_bytes((signs_with or chain[0])[0])
    certificate.write_bytes(b"".join(each[1] for each in chain))
    trusted.write_bytes(b"".join(each[1] for each in listed))
    version = write_version(folder / "models" / "SA101" / "3")
    config = library.signing.Config().use_certificate_signer(
        private_key=key, signing_certificate=certificate, certificate_chain=[certificate]
    )
    hashing = library.hashing.Config().set_ignored_paths(paths=["model.sig"])
    config.set_hashing_config(hashing).sign(version, version / "model.sig")
    return version, Keys(key, trusted)


SIGNS = (usage(), purpose("CODE_SIGNING"))


INVALID = "certificate of its signer is not valid"
ISSUER = {"extensions": [usage(issues=True)], "is_authority": True}


@pytest.mark.parametrize(
    ("signer", "issuer", "listed", "reason"),
    [
        *(({}, ISSUER, listed, None) for listed in ("authority", "issuer", "signer")),
        ({"valid": EXPIRED}, None, "authority", f"{INVALID}.*it expired .* UTC; sign with a valid certificate"),
        ({}, None, "expired", INVALID),
        ({}, None, "other", INVALID),
        # a certificate must be one for signatures
        ({"extensions": (usage(),)}, None, "authority", None),
        ({}, None, "authority", None),
        ({"extensions": ()}, None, "authority", "missing required extension"),
        ({"extensions": (usage(signs=False), purpose("CODE_SIGNING"))}, None, "authority", "lacks digitalSignature"),
        ({"extensions": (usage(), purpose("SERVER_AUTH"))}, None, "authority", "lacks codeSigning"),
        ({"curve": ec.SECP384R1}, None, "authority", "is not a key of the curve P-256"),
        # only an authority issues certificates
        ({}, {**ISSUER, "extensions": ()}, "authority", None),
        ({}, {**ISSUER, "extensions": (usage(),)}, "authority", "lacks keyCertSign"),
        ({}, {**ISSUER, "is_authority": False}, "authority", "not valid"),
    ],
)
def test_certificates_of_signers(tmp_path, signer, issuer, listed, reason):
    pairs = {"authority": pair("authority"), "other": pair("authority"), "expired": pair("authority", valid=EXPIRED)}
    root = pairs["expired" if listed == "expired" else "authority"]
    pairs["issuer"] = pair("issuer", root, **issuer) if issuer else root
    pairs["signer"] = pair("signer", pairs["issuer"], **{"extensions": SIGNS, **signer})
    chain = [pairs["signer"], pairs["issuer"]] if issuer else [pairs["signer"]]
    version, keys = certified(tmp_path, chain, [pairs[listed]])
    refused(version, keys, reason)
    if listed == "authority" and (reason is None or "valid" in signer):  # model-signing accepts an expired signer
        config = library.verifying.Config().use_certificate_verifier(certificate_chain=[keys.public])
        config.verify(version, version / "model.sig")


def test_a_certificate_in_a_signature_does_not_make_its_key_accepted(tmp_path):
    """The chain comes with the model: anyone can put one there."""
    version, keys = certified(tmp_path, [pair("signer", extensions=SIGNS)], [pair("signer", extensions=SIGNS)])
    refused(version, keys, "certificate of its signer is not valid")
    refused(version, write_keys(tmp_path), "is not signed by")


def test_a_key_alone_does_not_stand_for_a_certificate(version, keys, tmp_path):
    signer = pair("signer", extensions=SIGNS)
    trusted = tmp_path / "signer.pem"
    trusted.write_bytes(signer[1])
    refused(version, Keys(keys.private, trusted), "is signed without a certificate, and .*signer.pem has no public key")
    trusted.write_bytes(signer[1] + keys.public.read_bytes())
    verify(version, Keys(keys.private, trusted))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"x", "is not PEM"),
        (pair("key")[0], "holds no public key and no certificate"),
        (
            b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
            "has a key or certificate that cannot be read",
        ),
        (
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "has a key or certificate that cannot be read",
        ),
    ],
)
def test_a_file_of_signers_that_cannot_be_used_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "signers.pem").write_bytes(content)
    with pytest.raises(InputError, match=f"signers.pem: {message}"):
        Signers.read(tmp_path / "signers.pem")
    with pytest.raises(InputError, match=r"wide\.public\.pem: is not a key of the curve P-256"):
        Signers.read(write_keys(tmp_path, "wide", ec.SECP384R1).public)


def verified(capsys, *arguments, code=0):
    assert main(["verify", *map(str, arguments)], "greenserve") == code
    return capsys.readouterr()


def test_command_verifies_versions_and_folders_of_models(version, keys, capsys):
    other = write_version(version.parents[1] / "SA102" / "7", "SA102", 7)
    sign(other, keys, "SA102", 7)
    for folders, count in (([version], 1), ([version.parent], 1), ([version.parents[1]], 2), ([version, other], 2)):
        out = verified(capsys, *folders, "--signed-by", keys.public).out.splitlines()
        assert len(out) == count and out[0] == f"SA101: {version} is signed by {keys.public}"


def test_command_names_a_refused_version_and_verifies_the_others(version, keys, capsys):
    shutil.copytree(version, version.parents[1] / "SA102" / "3")
    shutil.copytree(version, version.parents[1] / "SA100" / "3")
    printed = verified(capsys, version.parents[1], "--signed-by", keys.public, code=2)
    assert len(printed.err.splitlines()) == 2 and f"SA101: {version}" in printed.out
    assert f"error: {version.parents[1] / 'SA100' / '3'}: is signed as model 3 of SA101" in printed.err


def test_command_verifies_what_a_server_would_load_under_its_names(version, keys, capsys, tmp_path):
    write_version(version.parent / "4", number=4)
    file = tmp_path / "models.config"
    entry = 'model_config_list {{ config {{ name: "{}" base_path: "{}" model_platform: "tensorflow" {} }} }}'
    pinned = "model_version_policy { specific { versions: 3 } }"
    for name, policy, code in (("SA101", pinned, 0), ("SA101", "", 2), ("SA102", pinned, 2)):
        file.write_text(entry.format(name, version.parent, policy))
        verified(capsys, "--model_config_file", file, "--signed-by", keys.public, code=code)
    file.write_text(entry.format("SA101", tmp_path / "none", ""))
    assert (
        "no version to serve" in verified(capsys, "--model_config_file", file, "--signed-by", keys.public, code=2).err
    )


def test_command_needs_models_that_exist(keys, capsys, tmp_path):
    for arguments, message in (
        ([], "pass the models' folders, or --model_config_file"),
        (["models", "--model_config_file", "f"], "pass the models' folders, or"),
        ([tmp_path], "holds no version of a model"),
        ([tmp_path / "none" / "3"], "holds no version of a model"),
    ):
        assert main(["verify", *map(str, arguments), "--signed-by", str(keys.public)], "greenserve") == 2
        assert_refused(capsys, message)


X = np.zeros(17, np.float32)


@pytest.fixture
def models(tmp_path, grid_models, keys):
    """A folder with a signed version 1 of SA103, and one of SA105 without a signature."""
    for tl in ("SA103", "SA105"):
        shutil.copytree(grid_models / tl, tmp_path / "models" / tl)
    sign(tmp_path / "models" / "SA103" / "1", keys, "SA103", 1)
    return tmp_path / "models"


def requiring(keys, models_dir=None, **settings):
    return ServerConfig(models_dir, port=0, poll_s=0, signers=Signers.read(keys.public), **settings)


def status(server, tl):
    with Client(f"127.0.0.1:{server.port}", retries=0) as client:
        return client.status(tl)[0].status.error_message


def test_only_signed_models_are_loaded_and_the_log_says_why(models, keys, caplog):
    with running(requiring(keys, models)) as server:
        assert server.manager.served() == {"SA103": [1]}
        assert "SA105/1: is not signed: model.sig is missing" in status(server, "SA105")
        with Client(f"127.0.0.1:{server.port}") as client:
            assert client.predict("SA103", X)["action"].shape == (1, 1)
    (record,) = [record for record in caplog.records if record.message == "load_failed"]
    assert record.fields["model"] == "SA105" and "is not signed" in str(record.fields["error"])
    with running(ServerConfig(models, port=0, poll_s=0)) as server:
        assert server.manager.served() == {"SA103": [1], "SA105": [1]}


def test_version_served_before_stays_when_a_newer_one_is_refused_or_its_own_files_are_changed(models, keys):
    with running(requiring(keys, models)) as server:
        shutil.copytree(models / "SA103" / "1", models / "SA103" / "2")
        server.poll_once()
        assert server.manager.served() == {"SA103": [1]}
        assert "is signed as model 1 of SA103, not 2 of SA103" in status(server, "SA103")
        shutil.rmtree(models / "SA103" / "2")
        (models / "SA103" / "1" / "assets.extra" / "more").write_text("x")
        server.poll_once()
        assert server.manager.served() == {"SA103": [1]}
        with Client(f"127.0.0.1:{server.port}", retries=0) as client:
            (loaded,) = [each for each in client.status("SA103") if each.version == 1]
        assert loaded.state == ModelVersionStatus.AVAILABLE
        assert "assets.extra/more added after it was signed" in loaded.status.error_message


def test_model_is_not_served_under_the_name_of_another(models, keys):
    base = models / "SA103"
    for name, served in (("SA103", {"SA103": [1]}), ("SA105", {})):
        with running(requiring(keys, models={name: ModelConfig(name, base)})) as server:
            assert server.manager.served() == served


def test_files_that_change_after_their_verification_are_not_loaded(models, keys, monkeypatch):
    verify = signed_models.verify

    def verify_and_change(version, *arguments):
        verify(version, *arguments)
        (version / "saved_model.pb").write_bytes(b"another graph")

    monkeypatch.setattr(signed_models, "verify", verify_and_change)
    with running(requiring(keys, models)) as server, Client(f"127.0.0.1:{server.port}") as client:
        assert client.predict("SA103", X)["action"].shape == (1, 1)


def test_copies_that_were_loaded_or_refused_are_removed(models, keys, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    Path(tempfile.gettempdir()).mkdir()
    (models / "SA105" / "1" / "saved_model.pb").write_bytes(b"no graph")
    sign(models / "SA105" / "1", keys, "SA105", 1)
    with running(requiring(keys, models)) as server:
        assert not [*(tmp_path / "tmp").iterdir()]
        assert f"{models / 'SA105' / '1' / 'saved_model.pb'}: cannot be read" in status(server, "SA105")


def test_flag_names_the_signers_and_a_wrong_file_is_refused_at_the_start(models, keys, in_tmp_path):
    assert parse(["--models-dir", str(models)]).signers is None
    assert len(parse(["--models-dir", str(models), f"--require_signed_by={keys.public}"]).signers.keys) == 1
    for file, message in ((keys.private, "holds no public key"), (models / "none.pem", "cannot be read")):
        with pytest.raises(InputError, match=message):
            parse(["--models-dir", str(models), f"--require_signed_by={file}"])
