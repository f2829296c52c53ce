"""The statement: an in-toto statement with the test-result predicate, made from a sealed bundle.

What is stated besides the predicate's own fields stands in its field ``qualifyRun``; the in-toto attestation
framework (v1, parsing rules) allows such fields, and consumers that do not know it ignore it.
"""

from __future__ import annotations

import re

import msgspec
from securesystemslib.signer import CryptoSigner, SSlibKey

from qualify.errors import EvidenceError, UsageError
from qualify.evidence.bundle import MANIFEST, STATEMENT, Bundle, RunState
from qualify.evidence.digests import canonical_json, sha256_file, sha256_value
from qualify.evidence.signature import open_envelope, sign
from qualify.findings import Result, Verdict, Weight
from qualify.images.identity import SUBJECT_PREFIX
from qualify.plan import UNBOUND, Plan

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
FORMAT = "qualify/statement/1"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Descriptor(msgspec.Struct, frozen=True, kw_only=True):
    """An in-toto resource descriptor: something named, by its digest.

    Attributes:
        name: What it is called.
        digest: Hex digest by algorithm; here always ``sha256``.
    """

    name: str
    digest: dict[str, str]


class QualifyRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the predicate has no field of its own for.

    Attributes:
        format: Version of this format.
        verdict: qualified, rejected or inconclusive.
        release: Name of the release.
        subject: What the verdict binds to, as the bundle says it.
        scope: What the verdict covers.
        limitations: What was not covered.
        date: When the run began (UTC).
        harness: Version of the harness.
        plan_id: SHA-256 of the plan.
        policy_sha256: SHA-256 of the policy that judged.
        verdict_sha256: SHA-256 of ``verdict.json``.
        bundle_sha256: SHA-256 of the bundle's manifest, which holds the digest of each of its files.
        evidence_date: When the run began (UTC) that made the oldest evidence in the bundle; empty where the
            bundle is from before that was kept.
    """

    format: str
    verdict: Result
    release: str
    subject: str
    scope: dict[str, str]
    limitations: tuple[str, ...]
    date: str
    harness: str
    plan_id: str
    policy_sha256: str
    verdict_sha256: str
    bundle_sha256: str
    evidence_date: str = ""

    @property
    def oldest(self) -> str:
        """Date by which the statement ages."""
        return min(self.evidence_date or self.date, self.date)


class TestResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The predicate (https://in-toto.io/attestation/test-result/v0.1).

    Attributes:
        result: ``PASSED``, ``WARNED`` (qualified with waived findings) or ``FAILED`` (anything else).
        configuration: The run's YAML files.
        passed_tests: Rules that were satisfied.
        warned_tests: Rules whose findings were waived.
        failed_tests: Rules that found a defect or missed evidence.
        qualify_run: The rest.
    """

    __test__ = False  # not a test of pytest's

    result: str
    configuration: tuple[Descriptor, ...]
    passed_tests: tuple[str, ...]
    warned_tests: tuple[str, ...]
    failed_tests: tuple[str, ...]
    qualify_run: QualifyRun


class Statement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An in-toto statement v1.

    Attributes:
        type: The statement's type.
        subject: The one thing that it is about.
        predicate_type: The predicate's type.
        predicate: The predicate.
    """

    type: str = msgspec.field(name="_type")
    subject: tuple[Descriptor, ...]
    predicate_type: str
    predicate: TestResult

    @property
    def run(self) -> QualifyRun:
        """The run that it tells of."""
        return self.predicate.qualify_run


def subject_sha256(subject: str) -> str:
    """Hex digest of what a verdict binds to.

    Raises:
        UsageError: It binds to nothing.
    """
    if subject == UNBOUND:
        raise UsageError(
            "a verdict on attached servers binds to nothing, and nothing can be stated about it",
            advice="Have the harness start the servers, from an image or a serving environment.",
        )
    return subject.removeprefix(SUBJECT_PREFIX).removeprefix("sha256:")


def sha256_of(digest: str) -> str:
    """The hex digits of a digest that the user gave.

    Raises:
        UsageError: It is none.
    """
    if not _DIGEST.fullmatch(digest):
        raise UsageError(f"{digest!r} is no digest: sha256: and 64 hex digits")
    return digest.removeprefix("sha256:")


def make_statement(bundle: Bundle, verdict: Verdict) -> Statement:
    """States what a sealed bundle shows.

    Args:
        bundle: The bundle.
        verdict: What follows from it.

    Returns:
        The statement: the same for the same bundle.

    Raises:
        EvidenceError: The bundle cannot be read.
        UsageError: Its verdict binds to nothing.
    """
    plan = bundle.read("plan.json", Plan)
    state = bundle.read("run.json", RunState)
    run = QualifyRun(
        format=FORMAT,
        verdict=verdict.result,
        release=verdict.release,
        subject=verdict.subject,
        scope=dict(verdict.scope),
        limitations=verdict.limitations,
        date=state.date,
        harness=state.harness,
        plan_id=plan.plan_id,
        policy_sha256=verdict.policy_sha256,
        verdict_sha256=sha256_value(verdict),
        bundle_sha256=sha256_file(bundle.root / MANIFEST),
        evidence_date=state.evidence_date,
    )
    rules = {weight: _rules(verdict, weight) for weight in Weight}
    passed = "WARNED" if rules[Weight.WAIVED] else "PASSED"
    failed = rules[Weight.DEFECT] | rules[Weight.UNTESTED]
    predicate = TestResult(
        result=passed if verdict.result is Result.QUALIFIED else "FAILED",
        configuration=tuple(_descriptor(name, digest) for name, digest in plan.inputs),
        passed_tests=tuple(sorted(rules[Weight.SATISFIED] - rules[Weight.WAIVED] - failed)),
        warned_tests=tuple(sorted(rules[Weight.WAIVED] - failed)),
        failed_tests=tuple(sorted(failed)),
        qualify_run=run,
    )
    return Statement(
        type=STATEMENT_TYPE,
        subject=(_descriptor(verdict.release, subject_sha256(verdict.subject)),),
        predicate_type=PREDICATE_TYPE,
        predicate=predicate,
    )


def _rules(verdict: Verdict, weight: Weight) -> set[str]:
    return {finding.rule for finding in verdict.findings if finding.weight is weight}


def _descriptor(name: str, sha256: str) -> Descriptor:
    return Descriptor(name=name, digest={"sha256": sha256})


def sign_bundle(bundle: Bundle, verdict: Verdict, signer: CryptoSigner) -> Statement:
    """Puts the signed statement beside a bundle's manifest.

    Args:
        bundle: A sealed bundle.
        verdict: What follows from it.
        signer: The private key.

    Returns:
        What was signed.
    """
    statement = make_statement(bundle, verdict)
    bundle.write_bytes(STATEMENT, sign(canonical_json(statement), signer))
    return statement


def read_statement(content: bytes, key: SSlibKey, where: str) -> Statement:
    """Reads a signed statement.

    Args:
        content: The envelope.
        key: The public key of whoever signs releases.
        where: Named in complaints.

    Returns:
        The statement; its signature holds. Whether it is true of a bundle or an image is not known yet.

    Raises:
        EvidenceError: The signature does not hold, or something else was signed.
    """
    payload = open_envelope(content, key, where)
    try:
        statement = msgspec.json.decode(payload, type=Statement)
    except msgspec.DecodeError as error:
        raise EvidenceError(f"holds no statement about a test result: {error}", where=where) from error
    if (statement.type, statement.predicate_type) != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise EvidenceError(
            f"is a statement of another type: {statement.type!r}, {statement.predicate_type!r}", where=where
        )
    if statement.run.format != FORMAT or len(statement.subject) != 1:
        raise EvidenceError(
            f"is of format {statement.run.format!r} about {len(statement.subject)} subjects; "
            f"{FORMAT} about one is expected",
            where=where,
        )
    return statement
