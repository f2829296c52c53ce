"""Releases: image, model and serving configuration, as written in `images/<name>/release.yaml`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from qualify.scenario import Name, Profile, Seconds, Tokens
from qualify.transcript import Arm
from qualify.yamlsource import Strict

Environment = dict[Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")], str]
RelativePath = Annotated[str, StringConstraints(min_length=1, max_length=300)]
ContractSubject = Literal["reference", "emulated", "vllm", "triton", "cuda"]
FULL_GRAPHS = "FULL CUDA graph replay"
_PINNED = re.compile(r"@sha256:[0-9a-f]{64}$")
_SECRET_NAME = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|API_KEY|CREDENTIALS?)$")


class SyntheticModel(Strict):
    """A small random checkpoint, made on the machine that serves it.

    Attributes:
        kind: Names this form.
        seed: The same seed gives the same bytes.
        geometry: Its shape: ``cpu``, or ``h200`` for a GPU, see ``python -m ds4_kernels.checkpoint --help``.
        mute_c4: The C4A layers' output projection is zero, so that correct arms are bit-identical.
    """

    kind: Literal["synthetic"]
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    geometry: Name = "cpu"
    mute_c4: bool = False

    @property
    def folder(self) -> str:
        """Name of the directory of this checkpoint beside others."""
        return f"synthetic-{self.geometry}-{self.seed}" + ("-muted" if self.mute_c4 else "")

    def arguments(self, directory: Path) -> tuple[str, ...]:
        """What an interpreter is given so that it makes this checkpoint.

        Args:
            directory: Where it is written, as the interpreter sees it.

        Returns:
            The words after the interpreter.
        """
        words = ("-m", "ds4_kernels.checkpoint", str(directory), "--seed", str(self.seed))
        return (*words, "--geometry", self.geometry, *(["--mute-c4"] if self.mute_c4 else []))


class LocalModel(Strict):
    """A checkpoint that is already on the machine.

    Attributes:
        kind: Names this form.
        path: Directory with ``config.json``; relative paths start at the release file.
    """

    kind: Literal["local"]
    path: RelativePath


class Image(Strict):
    """What the image is composed of. Relative paths start at the release file.

    Attributes:
        recipe: The Dockerfile.
        base: Image to build on: a name with ``@sha256:...``, or the name of an image that is on this machine.
        python: The image's interpreter that serves.
        vllm: Version of vLLM that must be in it.
        contracts: Subjects of the C128A contract suite that must pass inside it, see `docs/contracts.md`.
        requirements: Pins of the Python packages that are installed, ``name==version`` a line; null for none.
        wheels: Folder that holds exactly these as wheels.
        sources: Folders that are built into it, below version control.
        patches: Patch files for the installed vLLM, in order; for ``patch -p1`` beside the ``vllm`` folder.
        overlay: Folder whose content is laid over the root directory, last.
        composition: An ``integration.lock.json`` that says how the patch of a fork was put together.
        composition_source: A checkout of the composed fork, whose tree is compared with the composition's.
        cuda_architectures: Compute capabilities times ten that the CUDA kernels are built for.
        left_out: Python packages that others ask for and that are left out on purpose; ``pip check`` may miss
            these and no others.
        arguments: Build arguments of the recipe.
    """

    recipe: RelativePath = "Dockerfile"
    base: Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^\S+$")]
    python: Annotated[str, StringConstraints(pattern=r"^/\S+$")]
    vllm: Annotated[str, StringConstraints(pattern=r"^[0-9][0-9A-Za-z.+!-]*$")]
    contracts: Annotated[tuple[ContractSubject, ...], Field(min_length=1, strict=False)]
    requirements: RelativePath | None = None
    wheels: RelativePath | None = None
    sources: Annotated[tuple[RelativePath, ...], Field(strict=False)] = ()
    patches: Annotated[tuple[RelativePath, ...], Field(strict=False)] = ()
    overlay: RelativePath | None = None
    composition: RelativePath | None = None
    composition_source: RelativePath | None = None
    cuda_architectures: Annotated[tuple[Annotated[int, Field(ge=70, le=200)], ...], Field(strict=False)] = ()
    left_out: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    arguments: Environment = Field(default_factory=dict)

    @model_validator(mode="after")
    def _belongs_together(self) -> Image:
        _refuse_secrets(self.arguments)
        if (self.requirements is None) != (self.wheels is None):
            raise ValueError("requirements and wheels belong together: give both or none")
        if self.composition_source and not self.composition:
            raise ValueError("composition_source belongs to a composition: name that, too")
        if len(set(self.contracts)) != len(self.contracts):
            raise ValueError("contracts names a subject twice")
        builder = self.arguments.get("BUILDER")
        if builder is not None and not _PINNED.search(builder):
            raise ValueError("arguments.BUILDER, the image that compiles, must be pinned: NAME@sha256:...")
        if "cuda" in self.contracts and not self.cuda_architectures:
            raise ValueError("the subject cuda needs cuda_architectures, e.g. [90, 100, 120]")
        return self


class Container(Strict):
    """Limits of the container of an arm.

    Attributes:
        memory_gib: Most memory, in GiB; swap is not used.
        pids: Most processes and threads.
        shm_mib: Size of /dev/shm in MiB.
        tmp_mib: Size of /tmp in MiB; the only folder that can be written to.
        gpus: How many GPUs; null for none.
    """

    memory_gib: Annotated[float, Field(gt=0, le=8192)] = 4.0
    pids: Annotated[int, Field(ge=16, le=65536)] = 512
    shm_mib: Annotated[int, Field(ge=64, le=1048576)] = 256
    tmp_mib: Annotated[int, Field(ge=16, le=1048576)] = 1024
    gpus: Annotated[int, Field(ge=1, le=64)] | None = None


class Serving(Strict):
    """What all arms share.

    Attributes:
        launcher: ``process``: the harness starts ``python -m module``; ``docker``: it does so in a container
            of the release's image; ``attach``: it is given URLs.
        container: Limits of each arm's container; ``docker`` only.
        python: Interpreter of the serving environment; relative paths start at the release file. A ``docker``
            release names its interpreter in ``image.python`` instead.
        module: Module that serves.
        served_name: Name that the server gives the model.
        max_model_len: Longest context, prompt and generated tokens together.
        max_num_seqs: Most requests in one batch.
        arguments: Further command-line arguments of the server, without the leading dashes; true is a bare
            flag.
        environment: Environment variables of the server. No secrets: they are written into the bundle.
        parallel_arms: The servers of all arms are started side by side, and driven one after another once all
            of them are ready. It saves the time of their starts, and needs room for all of them at once.
        ready_within_s: A server that is not ready by then counts as failed to start.
        stop_within_s: Time between SIGTERM and SIGKILL.
    """

    launcher: Literal["process", "docker", "attach"] = "process"
    container: Container = Field(default_factory=Container)
    python: RelativePath = ".venv-serving/bin/python"
    module: str = "vllm.entrypoints.openai.api_server"
    served_name: Name
    max_model_len: Tokens
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)]
    arguments: dict[Name, str | int | float | bool] = Field(default_factory=dict)
    environment: Environment = Field(default_factory=dict)
    parallel_arms: bool = False
    ready_within_s: Seconds = 600.0
    stop_within_s: Seconds = 30.0

    @model_validator(mode="after")
    def _no_secrets(self) -> Serving:
        _refuse_secrets(self.environment)
        owned = {"model", "host", "port", "served-model-name", "max-model-len", "max-num-seqs"}
        clash = sorted(owned & set(self.arguments))
        if clash:
            raise ValueError(f"arguments must not name {', '.join(clash)}: the harness sets them")
        return self


class ArmConfiguration(Strict):
    """What sets one arm apart.

    Attributes:
        arguments: Added to the arguments that all arms share.
        environment: Added to the environment that all arms share.
        fault: Control arm only: name of the fault that is put in.
        caught_in: Control arm only: scenarios in which its fault can act and must be caught.
    """

    arguments: dict[Name, str | int | float | bool] = Field(default_factory=dict)
    environment: Environment = Field(default_factory=dict)
    fault: Name | None = None
    caught_in: Annotated[tuple[Name, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _no_secrets(self) -> ArmConfiguration:
        _refuse_secrets(self.environment)
        if self.caught_in and self.fault is None:
            raise ValueError("caught_in needs a fault")
        if self.fault is not None and not self.caught_in:
            raise ValueError("a fault needs caught_in: the scenarios in which it can act")
        return self


class Arms(Strict):
    """The arms of the release.

    Attributes:
        baseline: No CUDA graphs, or fresh indices where replay is emulated.
        candidate: As it will ship.
        control: The candidate with one known fault put in; null switches it off, and then nothing can be
            qualified.
    """

    baseline: ArmConfiguration
    candidate: ArmConfiguration
    control: ArmConfiguration | None

    @model_validator(mode="after")
    def _faults_only_in_control(self) -> Arms:
        if self.baseline.fault:
            raise ValueError("the baseline cannot have a fault")
        if self.candidate.fault:
            raise ValueError("fault is for the control; put the candidate's own settings into environment")
        if self.control is not None and self.control.fault is None:
            raise ValueError("the control needs a fault: it is the candidate with one known fault put in")
        return self

    def configured(self) -> dict[Arm, ArmConfiguration]:
        """The arms that are there, in the order in which they are served."""
        arms = {Arm.BASELINE: self.baseline, Arm.CANDIDATE: self.candidate}
        return arms | ({Arm.CONTROL: self.control} if self.control else {})


class Release(Strict):
    """One image, model and serving configuration.

    Attributes:
        format: Version of this file's format.
        name: Name of the release.
        description: What it is, for people.
        replay: How the candidate replays its decode steps: ``full-graph`` on a GPU; ``emulated`` on a CPU,
            where CUDA graphs do not exist.
        compress_ratio: Tokens for each compressed entry of the C128A layers.
        model: The checkpoint.
        image: What the image is composed of; for ``docker``.
        serving: What all arms share.
        arms: The arms.
        scenarios: Scenario files, relative to the release file.
        profile: Size in which scenarios with profiles are driven: ``smoke``, ``gate`` or ``soak``.
        policy: The policy file, relative to the release file.
    """

    format: Literal["qualify/release/1"]
    name: Name
    description: str
    replay: Literal["full-graph", "emulated"]
    compress_ratio: Annotated[int, Field(ge=128)] = 128
    model: SyntheticModel | LocalModel = Field(discriminator="kind")
    image: Image | None = None
    serving: Serving
    arms: Arms
    scenarios: Annotated[tuple[RelativePath, ...], Field(min_length=1, strict=False)]
    profile: Profile | None = None
    policy: RelativePath

    @model_validator(mode="after")
    def _image_for_docker(self) -> Release:
        if self.serving.launcher == "docker" and self.image is None:
            raise ValueError("launcher docker needs the key image: what the image is composed of")
        if self.image is not None and "python" in self.serving.model_fields_set:
            raise ValueError("with an image, the interpreter is image.python; remove serving.python")
        return self

    @property
    def scope_replay(self) -> str:
        """What reports call the candidate's way of decoding."""
        return "emulated replay" if self.replay == "emulated" else FULL_GRAPHS


def secret_names(names: Iterable[str]) -> list[str]:
    """Those of some variables whose names say that they hold a secret, sorted."""
    return sorted(name for name in names if _SECRET_NAME.search(name))


def _refuse_secrets(values: Mapping[str, str]) -> None:
    secret = secret_names(values)
    if secret:
        raise ValueError(f"{', '.join(secret)} looks like a secret; the values are kept in the bundle")
