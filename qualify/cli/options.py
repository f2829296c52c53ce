"""Arguments and options that several commands share."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import get_args

import click

from qualify.errors import EvidenceError
from qualify.evidence.bundle import MANIFEST, Bundle
from qualify.scenario import Profile

EXIT_CODES = """Exit codes: 0 qualified, 1 rejected, 2 wrong usage, 3 inconclusive, 4 the machinery failed,
130 interrupted."""
PLAIN_EXIT_CODES = "Exit codes: 0 done, 2 wrong usage, 4 the machinery failed, 130 interrupted."
"""Of commands that give no verdict."""

FILE = click.Path(dir_okay=False, path_type=Path)
FILES = click.Path(exists=True, dir_okay=False, path_type=Path)
BUNDLE = click.Path(exists=True, file_okay=False, path_type=Path)

bundle_argument = click.argument("bundle", type=BUNDLE)
release_argument = click.argument("release", type=click.Path(exists=True, path_type=Path))
models_option = click.option(
    "--models",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("models"),
    show_default=True,
    help="Directory where synthetic models are made, and found again.",
)
no_control_option = click.option(
    "--no-control", is_flag=True, help="Leave the control out; then nothing can be qualified."
)
profile_option = click.option(
    "--profile",
    type=click.Choice(get_args(Profile)),
    help="Size of the scenarios: smoke is a short trial, gate decides on a release, soak lasts. "
    "Default: the release's own.",
)
policy_option = click.option(
    "--policy",
    type=FILES,
    help="Judge by this policy instead of the release's or bundle's own.",
)
public_key_option = click.option(
    "--key", required=True, type=FILE, help="Public key of whoever signs releases."
)


def today() -> datetime.date:
    """The day in UTC, with which ages are compared."""
    return datetime.datetime.now(datetime.UTC).date()


def sealed_bundle(location: Path) -> Bundle:
    """A bundle that was sealed: without its manifest nothing tells whether anything is missing or changed.

    Args:
        location: The bundle's directory.

    Returns:
        The bundle, not verified yet.

    Raises:
        EvidenceError: It has no manifest.
    """
    if not (location / MANIFEST).exists():
        raise EvidenceError(
            "the bundle was never sealed, so nothing says that it is whole",
            where=str(location),
            advice="Run again to the end; unchanged arms are not served again.",
        )
    return Bundle(location)
