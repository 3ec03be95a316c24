"""Signatures, and the files that hold their secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.endpoints.http.credentials import message_id, parse_credential, read_credential, read_secret, signature
from remora.model.errors import EndpointMisconfigured

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SIGNED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_signature_of_the_standard() -> None:
    """Secret, id, timestamp and body of the standard's own example give the signature of that example."""
    made = signature([read_secret(SECRET)], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')

    assert made == SIGNED


def test_secrets_side_by_side() -> None:
    """While secrets rotate there is one signature for each."""
    secrets = [read_secret(SECRET), read_secret("whsec_" + "QUFB" * 8)]

    made = signature(secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')

    assert made.split(" ")[0] == SIGNED
    assert len(made.split(" ")) == 2


@given(st.binary(max_size=40), st.binary(max_size=20))
def test_message_ids(shard: bytes, position: bytes) -> None:
    """An id is the same at each try, and holds no dot, which would end it where it is signed."""
    made = message_id(shard, position)

    assert made == message_id(shard, position)
    assert made.removeprefix("msg_").isalnum()
    assert made != message_id(shard, position + b"0")


@pytest.mark.parametrize("text", ["whsec_", "whsec_AAAA", "whsec_!!!!", "whsec_" + "QUFB" * 40, "x"])
def test_secrets_that_are_none(text: str) -> None:
    """What is no base64 of 24 to 64 bytes is refused, and not repeated."""
    with pytest.raises(ValueError) as caught:
        read_secret(text)

    assert text not in str(caught.value)


FILE = f'hosts = ["hooks.example.com", ".corp.example"]\nbearer = "tok3n"\nsecrets = ["{SECRET}"]\n'


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [("hooks.example.com", True), ("a.corp.example", True), ("corp.example", False), ("evil.example", False)],
)
def test_hosts_of_a_credential(tmp_path: Path, host: str, is_allowed: bool) -> None:
    """A credential goes to the hosts of its file only."""
    (tmp_path / "hooks").write_text(FILE)

    if is_allowed:
        assert read_credential(str(tmp_path), "hooks", host).bearer == "tok3n"
    else:
        with pytest.raises(EndpointMisconfigured, match="not among its hosts"):
            read_credential(str(tmp_path), "hooks", host)


def test_contents_of_a_credential_stay_out_of_texts() -> None:
    """Neither token nor secret stands in what is logged; another content is another credential."""
    found, other = parse_credential(FILE.encode()), parse_credential(FILE.replace("tok3n", "other").encode())

    assert "tok3n" not in repr(found)
    assert "MfKQ" not in repr(found)
    assert found != other


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tok3n", "not TOML"),
        ('bearer = "tok3n"', "names no host"),
        ('hosts = []\nbearer = "tok3n"', "names no host"),
        ('hosts = "tok3n"', "hosts is no list"),
        ('hosts = ["a"]', "neither bearer nor secrets"),
        ('hosts = ["a"]\nbearer = "tok3n\\r\\nX: y"', "bearer is no text"),
        ('hosts = ["a"]\nsecrets = ["tok3n"]', "a secret"),
        ('hosts = ["a"]\nbearer = "x"\ntok3n = 1', "has 1 others"),
    ],
)
def test_files_that_make_no_sense(tmp_path: Path, text: str, why: str) -> None:
    """A file that is no credential is refused with the reason, which repeats nothing of it."""
    (tmp_path / "hooks").write_text(text)

    with pytest.raises(EndpointMisconfigured, match=why) as caught:
        read_credential(str(tmp_path), "hooks", "a")

    assert "tok3n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file and a directory give one text, which does not tell them apart."""
    (tmp_path / "folder").mkdir()
    texts = set()
    for name in ("nothing", "folder"):
        with pytest.raises(EndpointMisconfigured) as caught:
            read_credential(str(tmp_path), name, "a")
        texts.add(str(caught.value).replace(name, "NAME"))

    assert texts == {"remora-credential NAME: missing or not readable in credentials.directory"}
    with pytest.raises(EndpointMisconfigured, match=r"credentials\.directory is not set"):
        read_credential("", "hooks", "a")
