"""The command that publishes."""

from __future__ import annotations

from pathlib import Path

import click

from qualify.cli.options import EXIT_CODES, FILE, bundle_argument, public_key_option, today
from qualify.errors import ExitCode
from qualify.evidence.bundle import Bundle
from qualify.evidence.signature import read_public_key
from qualify.publish import Publication, publish, read_publication_policy
from qualify.registry.reference import parse_reference
from qualify.reporting.progress import Progress


@click.command("publish", epilog=EXIT_CODES)
@bundle_argument
@public_key_option
@click.option(
    "--to",
    "target",
    required=True,
    metavar="REGISTRY/NAME:TAG",
    help="Release repository and its immutable tag.",
)
@click.option(
    "--from", "source", metavar="REGISTRY/NAME", help="Staging repository. Default: the bundle's own."
)
@click.option(
    "--policy",
    type=FILE,
    help="Publication policy. Default: accepts a real model on a GPU with FULL graphs only.",
)
@click.option(
    "--channel", "channels", multiple=True, metavar="TAG", help="Move this mutable tag, too; may be repeated."
)
@click.option("--dry-run", is_flag=True, help="Check everything and write nothing.")
def publish_command(
    bundle: Path,
    key: Path,
    target: str,
    source: str | None,
    policy: Path | None,
    channels: tuple[str, ...],
    dry_run: bool,
) -> int:
    """Promotes the image that BUNDLE qualified to a release tag and attaches the signed statement.

    Refuses with 1 what was rejected, with 3 evidence that does not hold or is not enough for the publication
    policy, with 2 a tag that is taken, with 4 if a registry is in trouble. The tag is written last.
    """
    publication = Publication(
        bundle=Bundle(bundle),
        key=read_public_key(key),
        policy=read_publication_policy(policy),
        target=parse_reference(target),
        source=parse_reference(source).repository if source else None,
        channels=channels,
        today=today(),
        dry_run=dry_run,
    )
    publish(publication, Progress().say)
    return ExitCode.QUALIFIED
