"""Certificates that sign themselves, for servers on this host, and others, for their clients."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """Two files in PEM."""

    certificate: Path
    key: Path


def certificate(folder: Path, name: str, signer: Certificate | None = None, age_days: int = 1) -> Certificate:
    """Make a certificate for a name and for 127.0.0.1, that is its own authority unless another one signs it.

    It is good for two days; one of an older age has expired.
    """
    folder.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begin = datetime.now(UTC) - timedelta(days=age_days)
    issuer, issuers_key = subject, key
    if signer is not None:
        issuer = x509.load_pem_x509_certificate(signer.certificate.read_bytes()).subject
        loaded = serialization.load_pem_private_key(signer.key.read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        issuers_key = loaded
    names = x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=2))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=0 if signer is None else None), True)
        .sign(issuers_key, hashes.SHA256())
    )
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
    made.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(pem(key))
    return made


def pem(key: ec.EllipticCurvePrivateKey, password: str = "") -> bytes:
    """A private key as files hold it, encrypted where there is a password."""
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        encryption = serialization.BestAvailableEncryption(password.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def encrypt(key: Path, password: str) -> bytes:
    """What a key's file holds once the key is encrypted."""
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    return pem(loaded, password)
