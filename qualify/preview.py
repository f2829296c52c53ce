"""What a run of a release would start, arm by arm: commands, mounts and environments. Starts nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qualify.armcommand import arm_command, arm_container, in_container
from qualify.inputs import Inputs
from qualify.serving.arms import ServerCommand
from qualify.serving.docker import container_spec
from qualify.transcript import Arm

NOT_COMPOSED = "not composed yet"
NOT_MADE = Path("MODEL")
"""Stands for a synthetic checkpoint that is not made."""
_BUNDLE = Path("BUNDLE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A path of this machine that a container sees.

    Attributes:
        source: The path.
        target: The path in the container.
        writable: False for read-only.
    """

    source: str
    target: str
    writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmPreview:
    """How one arm would be served.

    Attributes:
        arm: Which.
        fault: The fault that is put in.
        command: One line for a POSIX shell, environment included.
        argv: Its words; port 0 stands for the one that is chosen at the start.
        environment: What the server gets beside the machine's paths, caches and device selection.
        directory: Where it runs; empty in a container.
        image: The container's image; empty without one.
        mounts: What the container sees of this machine.
        gpus: How many GPUs the container gets; None without a container, or for none.
    """

    arm: Arm
    fault: str | None
    command: str
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    directory: str = ""
    image: str = ""
    mounts: tuple[Mount, ...] = ()
    gpus: int | None = None


def preview(inputs: Inputs, model: Path, image: str = NOT_COMPOSED) -> tuple[ArmPreview, ...]:
    """Resolves every arm of a release.

    Args:
        inputs: The release.
        model: Directory of the checkpoint, which need not be there.
        image: Reference of the composed image.

    Returns:
        One entry for each configured arm, in the order in which they are served. Paths below ``BUNDLE`` lie
        in the run's bundle.
    """
    arms = inputs.release.arms.configured()
    contained = in_container(inputs)
    previews = []
    for arm, configuration in arms.items():
        command = arm_command(inputs, arm, model=model, directory=_BUNDLE / "arms" / arm, port=0)
        plain = ArmPreview(
            arm=arm,
            fault=configuration.fault,
            command=command.shell,
            argv=command.argv,
            environment=command.environment,
            directory="" if contained else str(command.cwd),
        )
        previews.append(_contained(plain, inputs, command, model, image) if contained else plain)
    return tuple(previews)


def _contained(
    plain: ArmPreview, inputs: Inputs, command: ServerCommand, model: Path, image: str
) -> ArmPreview:
    directory = _BUNDLE / "arms" / plain.arm
    container = arm_container(inputs, plain.arm, image=image, model=model, directory=directory)
    spec = container_spec(container, command)
    return ArmPreview(
        arm=plain.arm,
        fault=plain.fault,
        command=plain.command,
        argv=spec.argv,
        environment=spec.environment,
        image=spec.image,
        mounts=tuple(
            Mount(source=str(bind.source), target=bind.target, writable=bind.writable) for bind in spec.binds
        ),
        gpus=spec.gpus,
    )
