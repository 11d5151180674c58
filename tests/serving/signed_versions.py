"""Versions of models, their signers, and changes of what was signed."""

import base64
import dataclasses
import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from export.saved_model.sign import Signer
from tests.serving.certificates import pair


def write_version(folder, tl="SA101", number=3):
    """A version's files without a model in them."""
    contract = {"tl": tl, "origin": {"model_number": str(number)}}
    for name, text in {
        "saved_model.pb": "graph",
        "variables/variables.index": "index",
        "variables/variables.data-00000-of-00001": "data",
        "assets.extra/policy.json": json.dumps(contract),
        "assets.extra/export.json": "{}",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@dataclasses.dataclass
class Keys:
    """Files of a signer."""

    private: Path
    public: Path


def write_keys(folder, name="key", curve=ec.SECP256R1):
    """A key and its public key, in PEM."""
    key, *_, private, _ = pair(name, curve=curve)
    keys = Keys(folder / f"{name}.pem", folder / f"{name}.public.pem")
    keys.private.write_bytes(key)
    pem, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    keys.public.write_bytes(private.public_key().public_bytes(pem, form))
    return keys


def usage(signs=True, issues=False):
    """The extension keyUsage."""
    others = "content_commitment key_encipherment data_encipherment key_agreement crl_sign encipher_only decipher_only"
    return x509.KeyUsage(digital_signature=signs, key_cert_sign=issues, **dict.fromkeys(others.split(), False))


def purpose(*names):
    """The extension extendedKeyUsage."""
    return x509.ExtendedKeyUsage([getattr(x509.oid.ExtendedKeyUsageOID, name) for name in names])


def sign(version, keys, tl="SA101", number=3, certificate=None):
    pytest.importorskip("model_signing", reason="signs; install greenserve[signing]")
    Signer(keys.private, certificate).sign(version, tl, number)


def edit(version, change, private_key=None):
    """Change a signature's file: its bundle, or its statement, which the key signs again if it is given."""
    file = version / "model.sig"
    bundle = json.loads(file.read_text())
    envelope = bundle["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    change(bundle, statement)
    payload = json.dumps(statement).encode()
    envelope["payload"] = base64.b64encode(payload).decode()
    if private_key is not None:
        key = serialization.load_pem_private_key(private_key.read_bytes(), None)
        content = b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(payload), payload)
        signature = key.sign(content, ec.ECDSA(hashes.SHA256()))
        envelope["signatures"] = [{"sig": base64.b64encode(signature).decode()}]
    file.write_text(json.dumps(bundle))
