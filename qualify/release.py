"""Releases: image, model and serving configuration, as written in `images/<name>/release.yaml`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from qualify.scenario import Name, Seconds, Tokens
from qualify.transcript import Arm
from qualify.yamlsource import Strict

Environment = dict[Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")], str]
RelativePath = Annotated[str, StringConstraints(min_length=1, max_length=300)]
_SECRET_NAME = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|API_KEY|CREDENTIALS?)$")


class SyntheticModel(Strict):
    """A small random checkpoint, made on the machine that serves it.

    Attributes:
        kind: Names this form.
        seed: The same seed gives the same bytes.
        mute_c4: The C4A layers' output projection is zero, so that correct arms are bit-identical.
    """

    kind: Literal["synthetic"]
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    mute_c4: bool = False


class LocalModel(Strict):
    """A checkpoint that is already on the machine.

    Attributes:
        kind: Names this form.
        path: Directory with ``config.json``; relative paths start at the release file.
    """

    kind: Literal["local"]
    path: RelativePath


class Serving(Strict):
    """What all arms share.

    Attributes:
        launcher: ``process``: the harness starts ``python -m module``; ``attach``: it is given URLs.
        python: Interpreter of the serving environment; relative paths start at the release file.
        module: Module that serves.
        served_name: Name that the server gives the model.
        max_model_len: Longest context, prompt and generated tokens together.
        max_num_seqs: Most requests in one batch.
        arguments: Further command-line arguments of the server, without the leading dashes; true is a bare
            flag.
        environment: Environment variables of the server. No secrets: they are written into the bundle.
        ready_within_s: A server that is not ready by then counts as failed to start.
        stop_within_s: Time between SIGTERM and SIGKILL.
    """

    launcher: Literal["process", "attach"] = "process"
    python: RelativePath = ".venv-serving/bin/python"
    module: str = "vllm.entrypoints.openai.api_server"
    served_name: Name
    max_model_len: Tokens
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)]
    arguments: dict[Name, str | int | float | bool] = Field(default_factory=dict)
    environment: Environment = Field(default_factory=dict)
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
        serving: What all arms share.
        arms: The arms.
        scenarios: Scenario files, relative to the release file.
        policy: The policy file, relative to the release file.
    """

    format: Literal["qualify/release/1"]
    name: Name
    description: str
    replay: Literal["full-graph", "emulated"]
    compress_ratio: Annotated[int, Field(ge=128)] = 128
    model: SyntheticModel | LocalModel = Field(discriminator="kind")
    serving: Serving
    arms: Arms
    scenarios: Annotated[tuple[RelativePath, ...], Field(min_length=1, strict=False)]
    policy: RelativePath

    @property
    def scope_replay(self) -> str:
        """What reports call the candidate's way of decoding."""
        return "emulated replay" if self.replay == "emulated" else "FULL CUDA graph replay"


def _refuse_secrets(environment: Environment) -> None:
    secret = sorted(name for name in environment if _SECRET_NAME.search(name))
    if secret:
        raise ValueError(f"{', '.join(secret)} looks like a secret; the environment is kept in the bundle")
