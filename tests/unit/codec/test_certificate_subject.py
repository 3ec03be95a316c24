"""The subject of a certificate, beside what a library reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.codec.certificate_subject import subject_of
from remora.model.errors import CodecError

KEY = ec.generate_private_key(ec.SECP256R1())
NAMES = (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.LOCALITY_NAME)


def certificate(subject: x509.Name) -> bytes:
    """A certificate of this subject, in DER."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")]))
        .public_key(KEY.public_key())
        .serial_number(7)
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=2))
        .sign(KEY, hashes.SHA256())
    )
    return signed.public_bytes(serialization.Encoding.DER)


def name(*pairs: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    """A subject of single names."""
    return x509.Name([x509.NameAttribute(number, text) for number, text in pairs])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.text(min_size=1, max_size=20)), min_size=1, max_size=4))
def test_a_subject_is_read_as_a_library_reads_it(pairs: list[tuple[x509.ObjectIdentifier, str]]) -> None:
    """Names of any text, in the order and with the escapes of RFC 4514."""
    pairs = [(number, text) for number, text in pairs if "\0" not in text and text.isprintable()]
    subject = name(*pairs)

    assert subject_of(certificate(subject)) == subject.rfc4514_string()


def test_names_of_all_kinds() -> None:
    """Several names side by side, one without a short name, and other texts than UTF-8."""
    subject = x509.Name([
        x509.RelativeDistinguishedName([
            x509.NameAttribute(NameOID.COMMON_NAME, "a"),
            x509.NameAttribute(NameOID.USER_ID, "u"),
        ]),
        x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b")]),
        x509.RelativeDistinguishedName([
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Zürich", x509.name._ASN1Type.BMPString)
        ]),
    ])  # fmt: skip

    assert subject_of(certificate(subject)) == "O=Zürich,1.2.840.113549.1.9.1=a@b,CN=a+UID=u"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 400))
def test_bytes_that_are_no_certificate_are_refused(noise: bytes, at: int) -> None:
    """Whatever stands in a file: a subject or CodecError, and nothing else."""
    good = certificate(name((NameOID.COMMON_NAME, "orders")))
    for data in (noise, good[:at], good[:at] + noise + good[at + len(noise) :]):
        try:
            assert isinstance(subject_of(data), str)
        except CodecError:
            continue


def test_a_certificate_that_ends_early_is_refused() -> None:
    """A half of a certificate has no subject."""
    good = certificate(name((NameOID.COMMON_NAME, "orders")))

    with pytest.raises(CodecError):
        subject_of(good[: len(good) // 2])
