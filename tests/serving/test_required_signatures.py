"""The embedded server with --require_signed_by: it loads what is signed, and loses no model to what is not."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from city.errors import InputError
from city.signatures import Signers
from serving import signed_models
from serving.client import Client
from serving.embedded.config import ServerConfig
from serving.embedded.flags import parse
from serving.embedded.models.model_config import ModelConfig
from tests.serving.conftest import running
from tests.serving.signed_versions import sign, write_keys

X = np.zeros(17, np.float32)


@pytest.fixture
def keys(tmp_path):
    return write_keys(tmp_path)


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
            errors = {each.version: each.status.error_message for each in client.status("SA103")}
        assert "assets.extra/more added after it was signed" in errors[1]


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
