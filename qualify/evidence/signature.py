"""Keys and signatures: ed25519 in a DSSE envelope, written so that cosign's verifier accepts it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey

from qualify.errors import EvidenceError, UsageError
from qualify.evidence.digests import canonical_json
from qualify.evidence.writing import begun

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_MAKE_ONE = "Make a pair with `qualify keygen`."


def generate_key(private: Path, public: Path) -> str:
    """Makes a pair of keys.

    Args:
        private: Where the private key goes (PEM, PKCS #8, not encrypted); readable by its owner alone.
        public: Where the public key goes (PEM).

    Returns:
        The key's id.

    Raises:
        MachineryError: One cannot be written; then neither is there.
        UsageError: One of the files exists, or their folder does not.
    """
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    known = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    if public.exists():
        raise UsageError("exists already, and is not overwritten", where=str(public))
    _create(private, secret, 0o600)
    try:
        _create(public, known, 0o644)
    except BaseException:
        private.unlink()  # half a pair would be in the way of the next attempt
        raise
    return key_id(key.public_key())


def _create(path: Path, content: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise UsageError("exists already, and is not overwritten", where=str(path)) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError("its folder does not exist", where=str(path)) from error
    with begun(path, path), open(descriptor, "wb") as stream:
        os.fchmod(descriptor, mode)
        stream.write(content)


def key_id(key: Ed25519PublicKey) -> str:
    """The key's fingerprint as OpenSSH writes it: the id that cosign's verifier expects where one is given.

    Args:
        key: A public key.

    Returns:
        ``SHA256:`` and the base64 of the digest, without padding.
    """
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def read_private_key(path: Path) -> CryptoSigner:
    """Reads a private key for signing.

    Args:
        path: Its file.

    Returns:
        What signs with it.

    Raises:
        UsageError: There is none, others can read it, or it is no ed25519 private key without a passphrase.
    """
    try:
        with path.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            content = stream.read()
    except OSError as error:
        raise UsageError(
            f"the private key cannot be read: {error.strerror}", where=str(path), advice=_MAKE_ONE
        ) from error
    if mode & 0o077:
        raise UsageError(
            f"the private key can be read or written by others (mode {mode:04o})",
            where=str(path),
            advice=f"`chmod 600 {path}`; if others had access to it, make a new pair.",
        )
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(
            "is not a private key without passphrase", where=str(path), advice=_MAKE_ONE
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError("is not an ed25519 key", where=str(path), advice=_MAKE_ONE)
    return CryptoSigner(key, SSlibKey.from_crypto(key.public_key(), keyid=key_id(key.public_key())))


def read_public_key(path: Path) -> SSlibKey:
    """Reads a public key for verifying.

    Args:
        path: Its file.

    Returns:
        The key.

    Raises:
        UsageError: There is none, or it is no ed25519 public key.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"the public key cannot be read: {error.strerror}", where=str(path)) from error
    if b"PRIVATE KEY" in content:
        raise UsageError("is a private key; give the public one", where=str(path))
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError("is not a public key (PEM)", where=str(path)) from error
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError("is not an ed25519 key", where=str(path), advice=_MAKE_ONE)
    return SSlibKey.from_crypto(key, keyid=key_id(key))


def sign(payload: bytes, signer: CryptoSigner) -> bytes:
    """Signs an in-toto statement.

    Args:
        payload: The statement.
        signer: What `read_private_key` gave.

    Returns:
        The envelope; the same for the same statement and key, since ed25519 is deterministic.
    """
    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    envelope.sign(signer)
    return canonical_json(envelope.to_dict())


def open_envelope(content: bytes, key: SSlibKey, where: str) -> bytes:
    """Verifies an envelope and gives what was signed.

    The envelope must be written as `sign` writes it. Blanks, a key id or the spelling of base64 are not
    covered by the signature, and a file in which they differ is not the file that was signed.

    Args:
        content: The envelope.
        key: The public key.
        where: Named in complaints.

    Returns:
        The payload.

    Raises:
        EvidenceError: It is damaged, was edited, or was signed with another key.
    """
    try:
        envelope = Envelope.from_dict(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, VerificationError) as error:
        raise EvidenceError("is not a signed statement (DSSE envelope)", where=where) from error
    if envelope.payload_type != PAYLOAD_TYPE or list(envelope.signatures) != [key.keyid]:
        signers = ", ".join(repr(signer) for signer in envelope.signatures) or "nobody"
        raise EvidenceError(
            f"is signed by {signers}, and the key given is {key.keyid}",
            where=where,
            advice="Give the public key of whoever signs releases; trust nothing else.",
        )
    try:
        envelope.verify([key], threshold=1)
    except VerificationError as error:
        raise EvidenceError(
            f"its signature is not one of key {key.keyid}: it was edited, or signed with another key",
            where=where,
        ) from error
    if canonical_json(envelope.to_dict()) != content:
        raise EvidenceError("was changed after it was signed", where=where)
    return envelope.payload
