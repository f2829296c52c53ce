"""Publication: the tested image becomes the released one, if a verified statement says that it may."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from securesystemslib.signer import SSlibKey

from qualify.errors import EvidenceError, ExitCode, MachineryError, QualifyError, UsageError
from qualify.evidence.bundle import Bundle
from qualify.evidence.recording import read_policy, read_record
from qualify.evidence.statement import PREDICATE_TYPE, Statement
from qualify.evidence.verification import Verified, check_age, read_image, verify_bundle
from qualify.findings import Result, Verdict
from qualify.gate import judge
from qualify.images.identity import SUBJECT_PREFIX
from qualify.plan import Label
from qualify.policy import PublicationPolicy
from qualify.registry.attach import Attachment, attach_as_referrer, attach_by_tag, keep_attached
from qualify.registry.client import Manifest, Registry
from qualify.registry.promote import End, copy_content, source_manifest
from qualify.registry.reference import Reference, Repository, check_tag, parse_reference
from qualify.yamlsource import Source, parse_or_refuse


class NotQualifiedError(QualifyError):
    """A verified verdict that is not ``qualified``: refused with the verdict's own exit code."""

    def __init__(self, result: Result, what: str, *, where: str = "", advice: str = "") -> None:
        super().__init__(what, where=where, advice=advice)
        self.exit_code: ExitCode = result.exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What the user asked for.

    Attributes:
        bundle: The bundle, with its signed statement.
        key: Public key of whoever signs releases.
        policy: What may be published.
        target: Release repository and immutable tag.
        source: Repository that holds the tested image; None takes the one that the bundle names.
        channels: Mutable tags to move to it.
        today: Today.
        dry_run: Checks everything and writes nothing.
    """

    bundle: Bundle
    key: SSlibKey
    policy: PublicationPolicy
    target: Reference
    source: Repository | None
    channels: tuple[str, ...]
    today: datetime.date
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Published:
    """What became of it.

    Attributes:
        digest: The image's digest.
        statement: The statement.
        was_there: True where the tag named this digest already.
    """

    digest: str
    statement: Statement
    was_there: bool


def read_publication_policy(path: Path | None) -> PublicationPolicy:
    """Reads a publication policy.

    Args:
        path: Its file; None takes the defaults.

    Raises:
        UsageError: It is wrong.
    """
    if path is None:
        return PublicationPolicy(format="qualify/publication/1", name="default")
    return parse_or_refuse(Source(path), PublicationPolicy)


def publish(publication: Publication, say: Callable[[str], None]) -> Published:
    """Promotes the tested image to its release tag and attaches the statement.

    Everything is checked before anything is written, and the tag is written last: a publication that fails
    half way leaves no tag behind, and can be repeated.

    Args:
        publication: What the user asked for.
        say: Tells the user what happens.

    Returns:
        What was published, or would have been.

    Raises:
        EvidenceError: The evidence does not hold or is not good enough.
        NotQualifiedError: The evidence holds, and its verdict is not ``qualified``.
        UsageError: The target cannot be written to.
        MachineryError: A registry is in trouble.
    """
    _check_tags(publication)
    verified = _check_evidence(publication)
    statement = verified.statement
    digest = verified.verdict.subject.removeprefix(SUBJECT_PREFIX)
    source_at = publication.source or parse_reference(read_image(publication.bundle).reference).repository
    target_at = publication.target.repository
    say(f"{source_at}@{digest}: {statement.run.verdict}, statement and bundle verified")
    _say_how_it_was_judged(publication.bundle, statement, say)
    with contextlib.ExitStack() as stack:
        source = End(stack.enter_context(Registry(source_at)), source_at)
        same = source_at.registry == target_at.registry
        target = End(source.registry if same else stack.enter_context(Registry(target_at)), target_at)
        manifest = source_manifest(source, digest)
        was_there = _check_release_tag(target, publication.target.tag, digest)
        if publication.dry_run:
            say(f"dry run: would publish {target_at}:{publication.target.tag}; nothing was written")
            return Published(digest, statement, was_there)
        _write(publication, verified, source, target, manifest)
    say(f"{publication.target}: {digest}" + (" (was there already)" if was_there else ""))
    for channel in publication.channels:
        say(f"{target_at}:{channel}: {digest}")
    return Published(digest, statement, was_there)


def _check_tags(publication: Publication) -> None:
    tag, known = publication.target.tag, publication.policy.channels
    if not tag or publication.target.digest:
        raise UsageError(f"{publication.target}: name the release by a tag, and by nothing else")
    if tag in known:
        raise UsageError(
            f"{tag!r} is a channel of the publication policy, and a release needs a tag that never moves",
            advice=f"Publish under a version, and move the channel with --channel {tag}.",
        )
    for channel in publication.channels:
        check_tag(channel)
        if channel not in known:
            raise UsageError(
                f"{channel!r} is no channel of the publication policy; only channels may be moved",
                advice=f"Channels: {', '.join(known) or 'none'}.",
            )


def _check_evidence(publication: Publication) -> Verified:
    """All that speaks for or against publication before a registry is asked."""
    verified = verify_bundle(publication.bundle, publication.key)
    verdict = verified.verdict
    where = str(publication.bundle.root)
    if verdict.result is not Result.QUALIFIED:
        raise NotQualifiedError(
            verdict.result,
            f"the verdict is {verdict.result}: {' '.join(verdict.reasons[:1])}",
            where=where,
            advice="Nothing is published.",
        )
    if not verdict.subject.startswith(SUBJECT_PREFIX):
        raise EvidenceError(
            f"the verdict binds to {verdict.subject}, which is no image",
            where=where,
            advice="Qualify the image itself: only what was tested is published.",
        )
    check_age(verified.statement, publication.today, publication.policy.max_age_days)
    _check_scope(publication.policy, verdict)
    _check_judge(publication.policy, verdict)
    _check_waivers(publication.bundle, publication.today)
    return verified


def _check_scope(policy: PublicationPolicy, verdict: Verdict) -> None:
    """Each of these must stand in the scope and be accepted; what is not said is not accepted."""
    scope = dict(verdict.scope)
    accepted: dict[str, tuple[str, ...]] = {
        Label.DEVICE: policy.devices,
        Label.LAUNCHER: policy.launchers,
        Label.REPLAY: policy.replays,
        Label.MODEL_KIND: policy.model_kinds,
    } | ({Label.PROFILE: policy.profiles} if policy.profiles else {})
    problems = [
        f"{label} {scope.get(label, 'not said')!r} (accepted: {', '.join(values) or 'none'})"
        for label, values in accepted.items()
        if scope.get(label) not in values
    ]
    if not policy.accept_uncommitted:
        # these stand in the scope only where something was found
        problems += [
            f"{label}: {scope[label]} (accepted: none, accept_uncommitted is false)"
            for label in (Label.SOURCES, Label.MODIFIED)
            if label in scope
        ]
    if problems:
        raise EvidenceError(
            f"the verdict's scope is not enough for publication policy {policy.name}: {'; '.join(problems)}",
            advice="Qualify with what users will run, or publish by a policy that accepts this (--policy).",
        )


def _check_judge(policy: PublicationPolicy, verdict: Verdict) -> None:
    if policy.policies and verdict.policy_sha256 not in policy.policies:
        raise EvidenceError(
            f"judged by policy {verdict.policy_sha256}, which publication policy {policy.name} does not name",
            advice="Judge by a policy that it names, or name this one under policies.",
        )


def _say_how_it_was_judged(bundle: Bundle, statement: Statement, say: Callable[[str], None]) -> None:
    policy, digest = read_policy(bundle)
    profile = statement.run.scope.get(Label.PROFILE, "none")
    say(f"judged by policy {policy.name} ({digest}), profile {profile}")
    for rule in statement.predicate.warned_tests:
        waivers = [waiver for waiver in policy.waivers if waiver.rule == rule]
        owners = ", ".join(f"{waiver.owner}, until {waiver.expires}" for waiver in waivers)
        say(f"waived: {rule} ({owners})")


def _check_waivers(bundle: Bundle, today: datetime.date) -> None:
    """Judges as if the run had been today: a waiver that has run out since waives nothing any more."""
    policy, digest = read_policy(bundle)
    record = read_record(bundle)
    verdict = judge(replace(record, run_date=today.isoformat()), policy, digest)
    if verdict.result is not Result.QUALIFIED:
        late = [waiver for waiver in policy.waivers if waiver.expires < today]
        expired = [f"{waiver.rule} ({waiver.owner}, {waiver.expires})" for waiver in late]
        raise NotQualifiedError(
            verdict.result,
            f"a waiver has expired since the run: {', '.join(expired)}; today it is {verdict.result}",
            where=str(bundle.root),
            advice="Have its owner renew it and judge again, or mend what it waives.",
        )


def _check_release_tag(target: End, tag: str, digest: str) -> bool:
    """True where the tag names this digest already.

    Raises:
        UsageError: It names another.
    """
    present = target.registry.manifest(target.repository, tag)
    if present is not None and present.digest != digest:
        raise UsageError(
            f"is taken by {present.digest}, and a release tag never moves; qualified was {digest}",
            where=f"{target.repository}:{tag}",
            advice="Publish under another tag.",
        )
    return present is not None


def _write(publication: Publication, verified: Verified, source: End, target: End, image: Manifest) -> None:
    attachment = Attachment(
        envelope=verified.envelope,
        predicate_type=PREDICATE_TYPE,
        key_id=str(publication.key.keyid),
        date=verified.statement.run.date,
    )
    copy_content(source, target, image)
    attach_by_tag(target, image.digest, attachment)
    lists_itself = attach_as_referrer(target, image, attachment)
    # Copying takes minutes; somebody may have taken the tag meanwhile.
    if not _check_release_tag(target, publication.target.tag, image.digest):
        target.registry.put_manifest(target.repository, publication.target.tag, image)
    for channel in publication.channels:
        target.registry.put_manifest(target.repository, channel, image)
    # No registry has a conditional write: who was overtaken meanwhile can only be told so.
    keep_attached(target, image, attachment, lists_itself=lists_itself)
    if not _check_release_tag(target, publication.target.tag, image.digest):
        raise MachineryError(
            "the tag is gone again after it was written",
            where=str(publication.target),
            advice="Somebody removed it, or the registry is broken. Look, and try again.",
        )
