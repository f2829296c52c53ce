"""From a release to the command that serves one of its arms. Pure, so that a plan can show it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qualify.loopback import HOST
from qualify.release import ArmConfiguration, Release
from qualify.steps import step_log
from qualify.transcript import Arm

_SPREADING = ("tensor-parallel-size", "pipeline-parallel-size")
SPECULATION = "speculative-config"
FORCED_TOKENS = "ds4_kernels.forced_tokens:ForcedTokens"

# Everything else of the harness's environment stays away from the server: what serves must be what the
# release says, and what the release says is kept in the bundle.
_INHERITED = frozenset({"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH"})
# Where compiled kernels are kept: a matter of the machine, which changes how fast a server starts and not
# what it serves.
_CACHES = frozenset({"DG_JIT_CACHE_DIR", "TILELANG_CACHE_DIR", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT"})
_INHERITED_PREFIXES = ("CUDA_", "NVIDIA_")

_FIXED_ENVIRONMENT = {
    # Prints the stack of a server that dies by SIGSEGV, SIGABRT, ...: how its end is told from a kill.
    "PYTHONFAULTHANDLER": "1",
    "PYTHONUNBUFFERED": "1",
    # Opens /pause and /resume, which fix the order in which requests are admitted.
    "VLLM_SERVER_DEV_MODE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}

Argument = str | int | float | bool


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How one arm's server is started.

    Attributes:
        argv: Program and arguments.
        environment: What the harness adds to the inherited environment, as (name, value), sorted by name.
        cwd: Directory in which it runs.
    """

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    cwd: Path

    @property
    def shell(self) -> str:
        """One line that a POSIX shell would take, for people."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment]
        return " ".join([*variables, shlex.join(self.argv)])


@dataclass(frozen=True, slots=True)
class ArmSettings:
    """What one arm's server is given, beside what depends on where it runs.

    Attributes:
        arguments: Command-line arguments by name.
        environment: Environment variables by name.
    """

    arguments: dict[str, Argument]
    environment: dict[str, str]


def arm_settings(release: Release, arm: Arm) -> ArmSettings:
    """What the release says of one arm; the control is the candidate with its own settings on top.

    Args:
        release: The release.
        arm: One of its configured arms.

    Returns:
        What all arms share, with the arm's own on top, and the control's fault put in.

    Raises:
        KeyError: The arm is not configured.
    """
    layers = _layers(release, arm)
    arguments: dict[str, Argument] = dict(release.serving.arguments)
    environment = _FIXED_ENVIRONMENT | _replay(release, arm) | release.serving.environment
    for layer in layers:
        arguments |= layer.arguments
        environment |= layer.environment
    if layers[-1].fault:
        # The second variable keeps a fault from being switched on by one stray setting.
        environment |= {"DS4_FAULT": layers[-1].fault, "DS4_FAULT_CONFIRM": "yes-break-this-server"}
    return ArmSettings(arguments, environment)


def ranks_of(release: Release, arm: Arm) -> int:
    """How many processes run the model of one arm.

    Args:
        release: The release.
        arm: One of its configured arms.

    Returns:
        Tensor parallel times pipeline parallel size.
    """
    arguments = arm_settings(release, arm).arguments
    return math.prod(int(arguments.get(name, 1)) for name in _SPREADING)


def server_command(
    release: Release, arm: Arm, *, model: Path, home: Path, arm_directory: Path, port: int
) -> ServerCommand:
    """Resolves one arm of a release.

    Args:
        release: The release.
        arm: One of its configured arms.
        model: Directory of the checkpoint.
        home: Directory of the release file, where relative paths start; also the working directory.
        arm_directory: The arm's directory in the bundle; the step log goes there.
        port: Port on 127.0.0.1.

    Returns:
        The command.

    Raises:
        KeyError: The arm is not configured.
    """
    serving, settings = release.serving, arm_settings(release, arm)
    arguments: dict[str, Argument] = {
        "model": str(model),
        "served-model-name": serving.served_name,
        "host": HOST,
        "port": port,
        "max-model-len": serving.max_model_len,
        "max-num-seqs": serving.max_num_seqs,
        # vLLM refuses to start with both
        **({} if SPECULATION in settings.arguments else {"logits-processors": FORCED_TOKENS}),
        **settings.arguments,
    }
    interpreter = release.image.python if release.image else str(home / serving.python)
    environment = settings.environment | {"DS4_STEP_LOG": str(arm_directory / step_log())}
    return ServerCommand(
        argv=(interpreter, "-m", serving.module, *command_line(arguments)),
        environment=tuple(sorted(environment.items())),
        cwd=home,
    )


def _layers(release: Release, arm: Arm) -> tuple[ArmConfiguration, ...]:
    own = release.arms.configured()[arm]
    return (release.arms.candidate, own) if arm is Arm.CONTROL else (own,)


def _replay(release: Release, arm: Arm) -> dict[str, str]:
    if release.replay != "emulated":
        return {}
    return {"DS4_REPLAY": "fresh" if arm is Arm.BASELINE else "emulated"}


def command_line(arguments: Mapping[str, Argument]) -> tuple[str, ...]:
    """Writes arguments as a command line.

    Args:
        arguments: Names without dashes. True is a bare flag, False its ``--no-`` form.

    Returns:
        The words, in the order given.
    """
    return tuple(_word(name, value) for name, value in arguments.items())


def _word(name: str, value: Argument) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"


def inherited_environment(own: Mapping[str, str]) -> dict[str, str]:
    """The part of the harness's environment that a server may see.

    Args:
        own: The harness's environment.

    Returns:
        Paths, caches, language and device selection only.
    """
    return {
        name: value
        for name, value in own.items()
        if name in _INHERITED | _CACHES or name.startswith(_INHERITED_PREFIXES)
    }
