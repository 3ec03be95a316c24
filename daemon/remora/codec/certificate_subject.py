"""The subject of a certificate as text, read from its DER encoding: who comes with it."""

from __future__ import annotations

from collections.abc import Iterator

from remora.model.errors import CodecError

_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_UTF16, _LATIN1 = 0x1E, 0x14
_LONG = 0x80
_NAMES = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET", "2.5.4.10": "O",
    "2.5.4.11": "OU", "0.9.2342.19200300.100.1.1": "UID", "0.9.2342.19200300.100.1.25": "DC",
}  # fmt: skip
"""The short names of RFC 4514; all others stand as numbers."""


def subject_of(der: bytes) -> str:
    """The subject of a certificate in the form of RFC 4514, the most specific name first: `CN=orders,O=Acme`.

    Raises CodecError for bytes that are no certificate.
    """
    certificate = _inside(der, _SEQUENCE, "certificate")
    parts = list(_elements(_inside(certificate, _SEQUENCE, "body")))
    if parts and parts[0][0] == _VERSION:
        del parts[0]
    if len(parts) < 5:  # serial number, algorithm, issuer, validity, subject
        raise CodecError("subject", 0, "is missing")
    sets = [each for tag, each in _elements(parts[4][1]) if tag == _SET]
    return ",".join("+".join(_name(each) for _, each in _elements(names)) for names in reversed(sets))


def _name(pair: bytes) -> str:
    parts = list(_elements(pair))
    if len(parts) != 2 or parts[0][0] != _OID:
        raise CodecError("subject", 0, "is no list of names")
    (_, number), (tag, value) = parts
    dotted = _dotted(number)
    encoding = {_UTF16: "utf-16-be", _LATIN1: "latin-1"}.get(tag, "utf-8")
    found = "".join(f"\\{each}" if each in ',+"\\<>;' else each for each in value.decode(encoding, "replace"))
    if found.endswith(" "):
        found = f"{found[:-1]}\\ "
    return f"{_NAMES.get(dotted, dotted)}=" + (f"\\{found}" if found[:1] in ("#", " ") else found)


def _dotted(number: bytes) -> str:
    parts, value = [], 0
    for each in number:
        value = value << 7 | each & 0x7F
        if not each & _LONG:
            parts.append(value)
            value = 0
    first = min(parts[0] // 40, 2) if parts else 0
    return ".".join(map(str, [first, parts[0] - 40 * first, *parts[1:]])) if parts else ""


def _inside(data: bytes, tag: int, name: str) -> bytes:
    found = next(_elements(data), None)
    if found is None or found[0] != tag:
        raise CodecError(name, 0, "is no sequence of DER")
    return found[1]


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element, one behind the other."""
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise CodecError("element", at, "ends within its header")
        tag, size = data[at], data[at + 1]
        at += 2
        if size & _LONG:
            count = size & ~_LONG
            size = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + size > len(data):
            raise CodecError("element", at, f"has {size} bytes, but only {max(0, len(data) - at)} are left")
        yield tag, data[at : at + size]
        at += size
