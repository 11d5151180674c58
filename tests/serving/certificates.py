"""Keys and certificates of authorities, servers and clients."""

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from serving.client.tls_files import TlsFiles


def pair(name, authority=None, valid=datetime.timedelta(days=1), extensions=(), is_authority=None, curve=ec.SECP256R1):
    """(key PEM, certificate PEM, key, certificate), self-signed or signed by an authority.

    `valid`: from now on; `extensions`: further ones; `is_authority`: default: if it is self-signed.
    """
    key = ec.generate_private_key(curve())
    is_authority = authority is None if is_authority is None else is_authority
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    issuer = authority[3].subject if authority else subject
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + valid)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if authority:
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority[2].public_key())
        builder = builder.add_extension(issuer_key, critical=False)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    certificate = builder.sign(authority[2] if authority else key, hashes.SHA256())
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return key_pem, certificate.public_bytes(serialization.Encoding.PEM), key, certificate


def write(folder, name, authority):
    """Write the authority's certificate, and a certificate of this name with its key."""
    key, certificate, *_ = pair(name, authority)
    for file, content in (("ca", authority[1]), ("certificate", certificate), ("key", key)):
        (folder / file).write_bytes(content)
    return TlsFiles(folder / "ca", folder / "certificate", folder / "key")
