"""What can build here: buildx, the BuildKit inside an older docker CLI, or the engine's classic builder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from docker import DockerClient
from docker.errors import BuildError

from qualify.errors import MachineryError, UsageError
from qualify.images.engine import advice_for, engine_errors, local_image

# Docker 23 took BuildKit out of its CLI and put it into the buildx component.
_WITHOUT_BUILDKIT = 23
_NEEDS_BUILDKIT = re.compile(r"^\s*RUN\s+--mount|^\s*COPY\s+(--chmod|--link)", re.MULTILINE)
_NO_PATCH = "PATCH DOES NOT APPLY:"
_LAST_LINES = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What is to be built.

    Attributes:
        context: Folder with everything that the recipe may use, the recipe itself as ``Dockerfile``.
        tag: Name that the image gets.
        arguments: Build arguments.
        labels: Labels of the image.
    """

    context: Path
    tag: str
    arguments: Mapping[str, str]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A docker CLI that has BuildKit.

    Attributes:
        program: The CLI.
        name: What it is, for people.
        words: Words after the program that start a build into the engine.
    """

    program: str
    name: str
    words: tuple[str, ...]


def find_command_line(path: str | None = None) -> CommandLine | None:
    """Looks for a docker CLI with BuildKit.

    Args:
        path: Search path; None takes ``PATH``.

    Returns:
        buildx where it is there, else the first CLI that carries BuildKit itself; None where there is none.
    """
    programs = list(_programs("docker", path))
    for program in programs:
        if _output(program, "buildx", "version"):
            return CommandLine(program, "buildx", ("buildx", "build", "--load"))
    for program in programs:
        version = re.search(r"version (\d+)\.", _output(program, "--version"))
        if version and int(version[1]) < _WITHOUT_BUILDKIT:
            return CommandLine(program, f"BuildKit inside docker {version[1]}", ("build",))
    return None


def _programs(name: str, path: str | None) -> Iterable[str]:
    for folder in (path if path is not None else os.environ.get("PATH", "")).split(os.pathsep):
        found = shutil.which(name, path=folder or ".")
        if found:
            yield found


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (subprocess.SubprocessError, OSError):
        return ""


def build(client: DockerClient, task: Build, command_line: CommandLine | None) -> tuple[str, str]:
    """Builds an image with the best builder that is there.

    Args:
        client: The engine.
        task: What is to be built.
        command_line: A CLI with BuildKit, if there is one.

    Returns:
        Id of the image, and the builder that was used.

    Raises:
        UsageError: The recipe or a patch is wrong.
        MachineryError: The recipe needs BuildKit and there is none, or the machine failed.
    """
    if command_line is not None:
        _by_command_line(task, command_line)
        used = command_line.name
    else:
        _by_engine(client, task)
        used = "classic builder"
    image = local_image(client, task.tag)
    if image is None:
        raise MachineryError(f"the build of {task.tag} ended well and gave no image (builder: {used})")
    return str(image.id), used


def _by_command_line(task: Build, cli: CommandLine) -> None:
    options = ["--network", "host", "--progress", "plain", "--tag", task.tag]
    for name, value in sorted(task.arguments.items()):
        options += ["--build-arg", f"{name}={value}"]
    for name, value in sorted(task.labels.items()):
        options += ["--label", f"{name}={value}"]
    done = subprocess.run(
        [cli.program, *cli.words, *options, str(task.context)],
        env={**os.environ, "DOCKER_BUILDKIT": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise build_failure(done.stdout.splitlines(), cli.name)


def _by_engine(client: DockerClient, task: Build) -> None:
    recipe = (task.context / "Dockerfile").read_text(encoding="utf-8")
    if _NEEDS_BUILDKIT.search(recipe):
        raise MachineryError(
            "the recipe needs BuildKit (RUN --mount, COPY --chmod), and there is no docker CLI that has it",
            advice="Install docker-buildx, or a docker.io below 23 that carries BuildKit.",
        )
    with engine_errors("build"):
        try:
            client.images.build(
                path=str(task.context),
                tag=task.tag,
                buildargs=dict(task.arguments),
                labels=dict(task.labels),
                network_mode="host",
                rm=True,
                forcerm=True,
            )
        except BuildError as error:
            lines = [str(entry.get("stream", entry.get("error", ""))).rstrip() for entry in error.build_log]
            raise build_failure(lines, "classic builder") from error


def build_failure(lines: list[str], builder: str) -> UsageError | MachineryError:
    """What a failed build means.

    Args:
        lines: What the builder said.
        builder: Which one.

    Returns:
        The error to raise: a patch that does not apply is the user's, everything else the machine's.
    """
    text = "\n".join(lines)
    refused = next((line.split(_NO_PATCH)[1].strip() for line in lines if f" {_NO_PATCH}" in f" {line}"), "")
    if refused:
        return UsageError(
            f"patch {refused} does not apply to the vLLM of the base image",
            advice="Make the patch for that version, or take it out of image.patches.",
        )
    said = "\n  ".join(line for line in lines[-_LAST_LINES:] if line.strip())
    return MachineryError(f"the image could not be built ({builder}):\n  {said}", advice=advice_for(text))
