"""Commands about images: lock them, build them, look into them."""

from __future__ import annotations

from pathlib import Path

import click

from qualify.cli.options import EXIT_CODES, PLAIN_EXIT_CODES, release_argument
from qualify.errors import ExitCode, UsageError
from qualify.evidence.bundle import INSPECTIONS, Bundle
from qualify.findings import Finding, Weight
from qualify.images.compose import lock_release
from qualify.images.engine import connect
from qualify.images.local_engine import REGISTRY_VARIABLE
from qualify.images.lock import RELEASE_LOCK, image_of, write_lock
from qualify.images.stage import compose_stage, inspect_stage
from qualify.inputs import read_inputs
from qualify.reporting.progress import Progress

DEFAULT_REGISTRY = "127.0.0.1:5000"

registry_option = click.option(
    "--registry",
    envvar=REGISTRY_VARIABLE,
    default=DEFAULT_REGISTRY,
    show_default=True,
    metavar="HOST:PORT",
    help="Registry to which images are pushed before anybody has judged them; "
    f"also from the variable {REGISTRY_VARIABLE}.",
)


@click.command("lock", epilog=PLAIN_EXIT_CODES)
@release_argument
def lock_command(release: Path) -> int:
    """Resolves everything that the image of RELEASE is made of into its release.lock.json.

    Prints the build id: the SHA-256 of that file.
    """
    inputs = read_inputs(release)
    image_of(inputs)  # a release without an image needs no engine to be refused
    lock = lock_release(inputs, connect())
    path = inputs.home / RELEASE_LOCK
    write_lock(lock, path)
    print(f"{lock.build_id}  {path}")
    return ExitCode.QUALIFIED


@click.command("image", epilog=PLAIN_EXIT_CODES)
@release_argument
@registry_option
def image_command(release: Path, registry: str) -> int:
    """Builds the image of RELEASE from its lock, pushes it to staging and prints its reference by digest."""
    composed = compose_stage(read_inputs(release), registry, Progress().say)
    print(composed.identity.reference)
    return ExitCode.QUALIFIED


@click.command("inspect", epilog=EXIT_CODES)
@release_argument
@registry_option
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="New directory that gets the findings, what they rest on, and the bill of materials.",
)
def inspect_command(release: Path, registry: str, into: Path) -> int:
    """Builds the image of RELEASE and looks into it, as a run does before it serves anything.

    Exits 0 if nothing speaks against serving it, 1 for something wrong, 3 where a look could not be taken.
    """
    if into.exists():
        raise UsageError("is there already", where=str(into), advice="Name a directory that is not there.")
    inputs = read_inputs(release)
    composed = compose_stage(inputs, registry, Progress().say)
    into.mkdir(parents=True)
    bundle, gpus = Bundle(into), inputs.release.serving.container.gpus
    inspect_stage(composed, bundle, (), gpus=gpus, say=Progress().say)
    findings = bundle.read(INSPECTIONS, tuple[Finding, ...])
    for finding in findings:
        print(f"{finding.weight:<9} {finding.rule}: {finding.summary}")
    return _exit_code({finding.weight for finding in findings})


def _exit_code(weights: set[Weight]) -> ExitCode:
    if Weight.DEFECT in weights:
        return ExitCode.REJECTED
    return ExitCode.QUALIFIED if weights == {Weight.SATISFIED} else ExitCode.INCONCLUSIVE
