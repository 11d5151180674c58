"""`greenserve record certify`: digests as a chain, the replay's verdict, the operators' commands, and a signature."""

import hashlib
import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from city import config
from controller.events import OperatorAction
from records.command import main
from signals.fallback.control_mode import OperatorMode
from tests.conftest import GRID
from tests.records.replayed_city import record_run


def operate(loop):
    if loop.now == 40:
        loop.set_mode("SA101", OperatorMode.HOLD, "Ada")
        loop.note_action(OperatorAction("pin", "SA102", "3", "Ben <b>"))


@pytest.fixture(scope="module")
def operated(tmp_path_factory):
    """A run that operators commanded, in several files of a folder."""
    folder = tmp_path_factory.mktemp("operated")
    record_run(folder / "run.mcap", config.load(GRID / "city.toml"), 150, steps_a_file=30, operate=operate)
    for k, path in enumerate(sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)):
        path.rename(folder / f"{k}.mcap")
    return folder


def keys(folder, name="key", curve=ec.SECP256R1):
    """Write (private key, public key) in PEM."""
    key = ec.generate_private_key(curve())
    private, public = folder / f"{name}.pem", folder / f"{name}.public.pem"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def certify(folder, *flags, code=0):
    assert main(["certify", str(folder), *map(str, flags)], "greenserve record") == code


def test_certificate_has_digests_as_a_chain_a_verdict_and_commands(operated, tmp_path, run):
    out, info = tmp_path / "c.json", json.loads(run("info", operated, "--json"))
    certify(operated, "--out", out)
    document = json.loads(out.read_text())
    chain = ""
    for k, file in enumerate(document["files"]):
        digest = hashlib.sha256((operated / f"{k}.mcap").read_bytes()).hexdigest()
        chain = hashlib.sha256((chain + digest).encode()).hexdigest()
        assert (file["name"], file["sha256"], file["chain"]) == (f"{k}.mcap", digest, chain)
    assert len(document["files"]) > 1 and document["digest"] == chain
    assert document["digest"] == info["digest"]
    assert document["replay"]["same"] and document["replay"]["steps"] == document["run"]["steps"] > 20
    assert [(command["at_s"], command["author"]) for command in document["commands"]] == [(40, "Ada"), (40, "Ben <b>")]
    page = (tmp_path / "c.html").read_text()
    assert document["run"]["run"] in page and document["digest"] in page and "bit for bit the same" in page
    assert "Ada set it to hold" in page and "Ben &lt;b&gt;: pin SA102 3" in page


def test_a_signed_certificate_is_checked_with_the_public_key(operated, tmp_path, capsys):
    out, (private, public) = tmp_path / "c.json", keys(tmp_path)
    certify(operated, "--out", out, "--sign", private)
    capsys.readouterr()
    certify(operated, "--check", out, "--public-key", public)
    assert "the record is that of the certificate, which its key has signed" in capsys.readouterr().out
    certify(operated, "--check", out)
    assert "its signature was not checked" in capsys.readouterr().out
    certify(operated, "--check", out, "--public-key", keys(tmp_path, "other")[1], code=2)
    assert "it was changed, or another key has signed it" in capsys.readouterr().err
    out.write_text(out.read_text().replace('"same": true', '"same": false'))
    certify(operated, "--check", out, "--public-key", public, code=2)


@pytest.mark.parametrize("change", ["byte", "missing", "swapped"])
def test_a_record_that_is_not_that_of_the_certificate_is_named(operated, tmp_path, capsys, change):
    out, copy = tmp_path / "c.json", tmp_path / "copy"
    copy.mkdir()
    for path in operated.glob("*.mcap"):
        (copy / path.name).write_bytes(path.read_bytes())
    certify(copy, "--out", out)
    if change == "missing":
        max(copy.iterdir()).unlink()
    elif change == "byte":
        data = bytearray((copy / "1.mcap").read_bytes())
        data[len(data) * 9 // 10] ^= 1
        (copy / "1.mcap").write_bytes(data)
    else:
        (copy / "0.mcap").rename(copy / "x.mcap")
        (copy / "1.mcap").rename(copy / "0.mcap")
    capsys.readouterr()
    certify(copy, "--check", out, code=3)
    said = capsys.readouterr().out
    assert {"byte": "1.mcap: differs", "missing": "1 files of the certificate are missing", "swapped": "differs"}[
        change
    ] in said


def test_a_record_that_is_not_decided_the_same_is_certified_as_such(operated, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("signals.green_phases.yellow_between", lambda green, following: green)
    certify(operated, "--out", tmp_path / "c.json", code=3)
    assert not json.loads((tmp_path / "c.json").read_text())["replay"]["same"]
    assert "not the same: " in (tmp_path / "c.html").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--public-key", "k.pem"], "--public-key is for --check"),
        (["--check", "c.json", "--out", "d.json"], "--check writes nothing"),
        (["--check", "none.json"], "none.json: cannot be read: No such file or directory"),
        (["--check", "text.json"], "text.json: is not a certificate of this version"),
        (["--sign", "none.pem"], "none.pem: cannot be read (No such file or directory); name a private key"),
        (["--sign", "text.json"], "text.json: is not a private key in PEM without a password"),
        (["--sign", "wide.pem"], "wide.pem: is not a key of the curve P-256"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(operated, tmp_path, monkeypatch, capsys, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.json").write_text("{}")
    keys(tmp_path, "wide", ec.SECP384R1)
    certify(operated, *flags, code=2)
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line and not (tmp_path / "certificate.json").exists()
