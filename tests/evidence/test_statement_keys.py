"""Keys: who may read them, what they may be, and that nothing else can have signed."""

import base64
import json
import os

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from qualify.errors import EvidenceError, UsageError
from qualify.evidence.signature import (
    PAYLOAD_TYPE,
    generate_key,
    key_id,
    open_envelope,
    read_private_key,
    read_public_key,
    sign,
)
from tests.imagebundles import Keys

PAYLOAD = b'{"a": 1}\n'


@pytest.fixture
def keys(tmp_path):
    return Keys(tmp_path)


def pem(key, encryption=None):
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        encryption or serialization.NoEncryption(),
    )


def test_private_key_is_its_owners_alone(keys):
    assert keys.private.stat().st_mode & 0o777 == 0o600
    assert keys.public.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("mask", [0o000, 0o277])
def test_umask_makes_no_difference(tmp_path, mask):
    before = os.umask(mask)
    try:
        generate_key(tmp_path / "key", tmp_path / "key.pub")
    finally:
        os.umask(before)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o644])
def test_key_that_others_can_reach_is_refused(keys, mode):
    keys.private.chmod(mode)
    with pytest.raises(UsageError, match=f"mode 0{mode:o}"):
        read_private_key(keys.private)


def test_keys_are_not_overwritten(keys):
    before = keys.private.read_bytes()
    with pytest.raises(UsageError, match="not overwritten"):
        generate_key(keys.private, keys.private.with_name("other.pub"))
    with pytest.raises(UsageError, match="not overwritten"):
        generate_key(keys.private.with_name("other"), keys.public)
    assert keys.private.read_bytes() == before
    assert not keys.private.with_name("other").exists()


def test_no_folder(tmp_path):
    with pytest.raises(UsageError, match="folder does not exist"):
        generate_key(tmp_path / "no/key", tmp_path / "no/key.pub")


def test_what_is_no_private_key(tmp_path, keys):
    encrypted = serialization.BestAvailableEncryption(b"x")
    cases = {
        "cannot be read": None,
        "is not a private key": b"x",
        "without passphrase": pem(Ed25519PrivateKey.generate(), encrypted),
        "not an ed25519 key": pem(generate_private_key(SECP256R1())),
        "is not a private key without": keys.public.read_bytes(),
    }
    for said, content in cases.items():
        path = tmp_path / "case"
        path.unlink(missing_ok=True)
        if content is not None:
            path.touch(0o600)
            path.write_bytes(content)
        with pytest.raises(UsageError, match=said):
            read_private_key(path)


def test_what_is_no_public_key(tmp_path, keys):
    other = generate_private_key(SECP256R1()).public_key()
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    cases = {
        "cannot be read": None,
        "is not a public key": b"x",
        "not an ed25519 key": other.public_bytes(serialization.Encoding.PEM, spki),
        "give the public one": keys.private.read_bytes(),
    }
    for said, content in cases.items():
        path = tmp_path / "case"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UsageError, match=said):
            read_public_key(path)


def test_key_id_is_the_fingerprint_that_openssh_prints():
    # `ssh-keygen -lf` of the public key with 32 zero bytes but the first, which is 1 (the group's identity)
    line = "AAAAC3NzaC1lZDI1NTE5AAAAIAEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    raw = base64.b64decode(line)[-32:]
    assert (
        key_id(Ed25519PublicKey.from_public_bytes(raw))
        == "SHA256:q9jkFkikArwJmdSqU/TYAoPoqVoVkplM9LDHikciiCM"
    )


def test_signature_is_over_the_pre_authentication_encoding(keys):
    """Verified with nothing but ed25519 and the definition of DSSE v1."""
    envelope = json.loads(sign(PAYLOAD, read_private_key(keys.private)))
    assert base64.b64decode(envelope["payload"]) == PAYLOAD
    assert envelope["payloadType"] == PAYLOAD_TYPE
    kind = PAYLOAD_TYPE.encode()
    encoded = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(PAYLOAD), PAYLOAD)
    public = serialization.load_pem_public_key(keys.public.read_bytes())
    public.verify(base64.b64decode(envelope["signatures"][0]["sig"]), encoded)


def test_every_changed_bit_is_refused(keys):
    content, key = sign(PAYLOAD, read_private_key(keys.private)), keys.verifying
    assert open_envelope(content, key, "here") == PAYLOAD
    for index in range(len(content) * 8):
        changed = bytearray(content)
        changed[index // 8] ^= 1 << index % 8
        with pytest.raises(EvidenceError):
            open_envelope(bytes(changed), key, "here")


def test_added_and_removed_bytes_are_refused(keys):
    content, key = sign(PAYLOAD, read_private_key(keys.private)), keys.verifying
    for changed in (content + b"\n", b" " + content, content[:-1], content[:-2], b"", content * 2):
        with pytest.raises(EvidenceError):
            open_envelope(changed, key, "here")


def test_another_key(tmp_path, keys):
    other = Keys(tmp_path, "other.key")
    envelope = sign(PAYLOAD, read_private_key(other.private))
    with pytest.raises(EvidenceError, match=f"is signed by '{other.verifying.keyid[:9]}.*the key given is"):
        open_envelope(envelope, keys.verifying, "here")
    # the other key's signature under this key's name
    named = envelope.replace(other.verifying.keyid.encode(), keys.verifying.keyid.encode())
    with pytest.raises(EvidenceError, match="its signature is not one of key"):
        open_envelope(named, keys.verifying, "here")


def test_a_second_signature_is_refused(tmp_path, keys):
    other = Keys(tmp_path, "other.key")
    both = json.loads(sign(PAYLOAD, read_private_key(keys.private)))
    both["signatures"] += json.loads(sign(PAYLOAD, read_private_key(other.private)))["signatures"]
    with pytest.raises(EvidenceError, match="is signed by"):
        open_envelope(json.dumps(both).encode(), keys.verifying, "here")


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"[]",
        b"null",
        b"[" * 5000,
        b'{"payload": 1}',
        b'{"payload":"","payloadType":"x","signatures":[]}',
    ],
)
def test_no_envelope(keys, content):
    with pytest.raises(EvidenceError):
        open_envelope(content, keys.verifying, "here")
