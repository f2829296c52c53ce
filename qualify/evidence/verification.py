"""Verification: is a signed statement true of the bundle that lies before us? Needs no network."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from securesystemslib.signer import SSlibKey

from qualify.errors import EvidenceError
from qualify.evidence.bundle import MANIFEST, STATEMENT, Bundle, verify
from qualify.evidence.digests import canonical_json, sha256_file
from qualify.evidence.recording import read_policy, read_record
from qualify.evidence.statement import Statement, make_statement, read_statement, subject_sha256
from qualify.findings import Verdict
from qualify.gate import judge
from qualify.images.identity import IMAGE_FILE, SUBJECT_PREFIX, ImageIdentity


def verify_statement(file: Path, key: SSlibKey, sha256: str) -> Statement:
    """Verifies a statement of which the bundle is not at hand.

    Args:
        file: The signed statement.
        key: The public key of whoever signs releases.
        sha256: Hex digest of what it must be about.

    Returns:
        The statement; its signature holds and it is about that digest.

    Raises:
        EvidenceError: One of these is not so.
    """
    statement = read_statement(_content(file), key, str(file))
    if subject_sha256(statement.run.subject) != sha256 or statement.subject[0].digest != {"sha256": sha256}:
        raise EvidenceError(
            f"is about {statement.run.subject}, not about sha256:{sha256}",
            where=str(file),
            advice="Take the statement that is attached to that image.",
        )
    return statement


@dataclass(frozen=True, slots=True)
class Verified:
    """A bundle and a statement that hold against each other.

    Attributes:
        statement: The statement.
        envelope: It, as it was signed.
        verdict: The verdict that the bundle's evidence gives now.
    """

    statement: Statement
    envelope: bytes
    verdict: Verdict


def verify_bundle(bundle: Bundle, key: SSlibKey, file: Path | None = None) -> Verified:
    """Verifies a bundle and its statement against each other, down to every file and the verdict itself.

    Args:
        bundle: A sealed bundle.
        key: The public key of whoever signs releases.
        file: The signed statement; None takes the one in the bundle.

    Returns:
        What was verified.

    Raises:
        EvidenceError: The signature does not hold, the statement is about another bundle or digest, a file
            was changed, or the evidence does not give the verdict that was stated.
    """
    path = file or bundle.root / STATEMENT
    envelope = _content(path)
    statement = read_statement(envelope, key, str(path))
    _check_manifest(bundle, statement, path)
    verify(bundle)
    policy, digest = read_policy(bundle)
    verdict = judge(read_record(bundle), policy, digest)
    check_written_verdict(bundle, verdict)
    if statement != make_statement(bundle, verdict):
        raise EvidenceError("does not say what the bundle says", where=str(path))
    _check_image(bundle, verdict.subject)
    return Verified(statement, envelope, verdict)


def check_written_verdict(bundle: Bundle, verdict: Verdict) -> None:
    """Refuses a bundle whose ``verdict.json`` is not what its evidence gives.

    Args:
        bundle: The bundle.
        verdict: What its evidence gives.

    Raises:
        EvidenceError: It holds another verdict, or none.
    """
    written = bundle.root / "verdict.json"
    if not written.is_file():
        raise EvidenceError(
            "is missing: the run ended before it was written",
            where=str(written),
            advice="Run again; unchanged arms stay.",
        )
    if written.read_bytes() != canonical_json(verdict):
        raise EvidenceError(
            "is not the verdict that this version of qualify gives on the bundle's evidence",
            where=str(written),
            advice="Use the version that ran (run.json names it), or run again; unchanged arms stay.",
        )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise EvidenceError(
            "there is no signed statement",
            where=str(path),
            advice="Sign the bundle: `qualify sign BUNDLE --key FILE`.",
        ) from error
    except OSError as error:
        raise EvidenceError(f"cannot be read: {error.strerror}", where=str(path)) from error


def _check_manifest(bundle: Bundle, statement: Statement, path: Path) -> None:
    manifest = bundle.root / MANIFEST
    if not manifest.is_file():
        raise EvidenceError("the bundle was never sealed", where=str(manifest))
    digest = sha256_file(manifest)
    if digest != statement.run.bundle_sha256:
        raise EvidenceError(
            f"is about a bundle whose manifest has SHA-256 {statement.run.bundle_sha256[:12]}..., and this "
            f"one has {digest[:12]}...: it belongs to another run ({statement.run.release}, "
            f"{statement.run.date}), or the manifest was changed",
            where=str(path),
        )


def _check_image(bundle: Bundle, subject: str) -> None:
    """An image's digest stands in the plan and in ``image.json``; they must agree."""
    if not subject.startswith(SUBJECT_PREFIX):
        return
    identity = read_image(bundle)
    if identity.subject != subject:
        raise EvidenceError(
            f"names {identity.subject}, but the verdict is about {subject}",
            where=str(bundle.root / IMAGE_FILE),
        )


def read_image(bundle: Bundle) -> ImageIdentity:
    """The image that a bundle is about.

    Raises:
        EvidenceError: The bundle is about none.
    """
    return bundle.read(IMAGE_FILE, ImageIdentity)


def check_age(statement: Statement, today: datetime.date, days: int) -> None:
    """Refuses a statement that is too old.

    Args:
        statement: A verified statement.
        today: Today.
        days: How many days after its oldest evidence was made it holds; what a run took over from an earlier
            one is as old as it was there.

    Raises:
        EvidenceError: It is older, or from the future.
    """
    began, oldest = (_day(date) for date in (statement.run.date, statement.run.oldest))
    age = (today - oldest).days
    if age > days:
        was = f"the run was on {began}"
        if oldest != began:
            was += f" and took over evidence of {oldest}"
        raise EvidenceError(
            f"the statement has expired: {was}, {age} days ago; {days} days are accepted",
            advice="Qualify the image again, and serve everything: `qualify run RELEASE --fresh`.",
        )
    if (today - began).days < -1:  # one day, for clocks and time zones
        raise EvidenceError(f"the statement is from the future: the run was on {began}, and today is {today}")


def _day(date: str) -> datetime.date:
    return datetime.date.fromisoformat(date[:10])
