"""How one arm of a release is started, in a container or not: one answer for the preview and the run."""

from __future__ import annotations

from pathlib import Path

from qualify.inputs import Inputs
from qualify.serving.arms import ServerCommand, ranks_of, server_command
from qualify.serving.docker import EVIDENCE_AT, MODEL_AT, Serving
from qualify.transcript import Arm


def in_container(inputs: Inputs) -> bool:
    """True where the release's arms are served in containers."""
    return inputs.release.serving.launcher == "docker"


def arm_command(inputs: Inputs, arm: Arm, *, model: Path, directory: Path, port: int) -> ServerCommand:
    """Resolves the command that serves one arm.

    Args:
        inputs: The release.
        arm: One of its configured arms.
        model: Directory of the checkpoint on this machine.
        directory: The arm's directory in the bundle, on this machine.
        port: Port on 127.0.0.1.

    Returns:
        The command, with paths as whoever runs it sees them.
    """
    contained = in_container(inputs)
    return server_command(
        inputs.release,
        arm,
        model=MODEL_AT if contained else model,
        home=inputs.home.absolute(),
        arm_directory=EVIDENCE_AT if contained else directory,
        port=port,
    )


def arm_container(inputs: Inputs, arm: Arm, *, image: str, model: Path, directory: Path) -> Serving:
    """Says what the container of one arm is given.

    Args:
        inputs: The release.
        arm: One of its configured arms.
        image: ``NAME@sha256:...``.
        model: Directory of the checkpoint on this machine.
        directory: The arm's directory in the bundle, on this machine.

    Returns:
        What it serves, with its limits.
    """
    return Serving(
        image=image,
        arm=arm,
        model=model,
        directory=directory,
        limits=inputs.release.serving.container,
        ranks=ranks_of(inputs.release, arm),
    )
