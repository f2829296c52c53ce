"""Reads a release with its scenarios and policy, and refuses what cannot work, all of it in one message."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qualify.errors import UsageError
from qualify.feasibility import unfulfillable
from qualify.modelconfig import contradictions, read_model_config
from qualify.policy import Policy
from qualify.release import LocalModel, Release
from qualify.scenario import Profile, Scenario
from qualify.scenario.reading import ScenarioFile, read_scenario
from qualify.serving.room import GPU_SHARE, GPU_SHARE_DEFAULT, gpu_shares
from qualify.variants import read_release_file
from qualify.yamlsource import Located, Problem, Source, parse, parse_or_refuse, refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The YAML files of one run as types.

    Attributes:
        home: Directory of the release file; relative paths start there.
        release: The release.
        scenarios: Its scenarios, in the release's order.
        policy: The policy.
        source: Where the release's values stand.
        places: Where each scenario's values stand, by its name.
        texts: Each file's text by its path within the bundle.
        profile: The profile that scenarios with profiles are driven in; None where none was chosen.
    """

    home: Path
    release: Release
    scenarios: tuple[Scenario, ...]
    policy: Policy
    source: Located = field(compare=False)
    places: Mapping[str, Located] = field(compare=False)
    texts: dict[str, str]
    profile: Profile | None = None

    def path(self, name: str) -> Path:
        """A path that the release file names. Links are kept: a virtual environment's interpreter is one."""
        return (self.home / name).absolute()


def read_inputs(
    location: Path,
    *,
    with_control: bool = True,
    policy_file: Path | None = None,
    profile: Profile | None = None,
    model_config: Path | None = None,
) -> Inputs:
    """Reads a release and everything it names.

    Args:
        location: The release file, or the directory that holds ``release.yaml``.
        with_control: False leaves the control out.
        policy_file: Used instead of the policy that the release names.
        profile: Used instead of the profile that the release names.
        model_config: The `config.json` of a local model that need not be there then; nothing can be served.

    Returns:
        The inputs, checked one by one and against each other.

    Raises:
        UsageError: Lists every problem of every file, each with its place.
    """
    path = location / "release.yaml" if location.is_dir() else location
    source, texts = read_release_file(path)
    release = parse_or_refuse(source, Release)  # without it nothing else can be found
    home = path.parent
    chosen = profile or release.profile
    problems: list[Problem] = []
    files = _scenarios(release, home, chosen, problems, texts)
    scenarios = [file.scenario for file in files]
    policy = _policy(policy_file or Path(os.path.normpath(home / release.policy)), problems, texts)
    if policy is not None:
        problems += _check_release(release, source, scenarios, policy)
    problems += _check_model(release, source, model_config)
    refuse(problems)
    assert policy is not None
    if not with_control:
        arms = release.arms.model_copy(update={"control": None})
        release = release.model_copy(update={"arms": arms})
    return Inputs(
        home=home,
        release=release,
        scenarios=tuple(scenarios),
        policy=policy,
        source=source,
        places={file.scenario.name: file.expansion for file in files},
        texts=texts,
        profile=chosen,
    )


def _scenarios(
    release: Release, home: Path, profile: Profile | None, problems: list[Problem], texts: dict[str, str]
) -> list[ScenarioFile]:
    """Reads the scenarios; what is wrong with them joins the problems, and their texts the other texts."""
    scenarios = []
    for name in release.scenarios:
        file = _open(Path(os.path.normpath(home / name)), problems)
        if file is None:
            continue
        read = read_scenario(file, profile)
        if isinstance(read, list):
            problems += read
            continue
        problems += unfulfillable(read.scenario, read.expansion, release)
        scenarios.append(read)
        texts |= _texts(read)
    return scenarios


def _policy(path: Path, problems: list[Problem], texts: dict[str, str]) -> Policy | None:
    """Reads a policy in the same way; None where it is wrong."""
    source = _open(path, problems)
    if source is None:
        return None
    texts["inputs/policy.yaml"] = source.text
    policy = parse(source, Policy)
    if isinstance(policy, list):
        problems += policy
        return None
    return policy


def _open(path: Path, problems: list[Problem]) -> Source | None:
    """Reads one of several files; what is wrong with it joins the other problems."""
    try:
        return Source(path)
    except UsageError as error:
        problems.append(Problem(error.where, error.what))
        return None


def _texts(read: ScenarioFile) -> dict[str, str]:
    """The files that a scenario was made of, by their path within the bundle: itself, and what it names."""
    own, *named = read.expansion.texts.items()
    scenario = read.scenario.name
    return {f"inputs/scenarios/{scenario}.yaml": own[1]} | {
        f"inputs/scenarios/{scenario}/{name}": text for name, text in named
    }


def _check_release(
    release: Release, source: Source, scenarios: list[Scenario], policy: Policy
) -> list[Problem]:
    problems = []
    names = [scenario.name for scenario in scenarios]
    readable = len(names) == len(release.scenarios)
    if len(set(names)) != len(names):
        problems.append(
            Problem(source.where(("scenarios",)), f"scenario names must differ: {', '.join(names)}")
        )
    control = release.arms.control
    if control is not None and readable:
        unknown = sorted(set(control.caught_in) - set(names))
        if unknown:
            problems.append(
                Problem(
                    source.where(("arms", "control", "caught_in")),
                    f"names {', '.join(unknown)}, not among the scenarios: {', '.join(sorted(names))}",
                )
            )
    capacity = -(-release.serving.max_model_len // release.compress_ratio)
    if release.compress_ratio == 128 and capacity <= 128:
        problems.append(
            Problem(
                source.where(("serving", "max_model_len")),
                "at most 16384 tokens make rows of 128 entries, as wide as the narrowest active width: "
                "the stride defect cannot show; use 32768 or more",
            )
        )
    problems += _check_side_by_side(release, source)
    problems += _check_one_way(scenarios, source)
    requests = sum(
        len(phase.asked) * phase.repeat for scenario in scenarios for phase in scenario.phases if phase.judged
    )
    if readable and requests < policy.floor.minimum_requests:
        problems.append(
            Problem(
                source.where(("scenarios",)),
                f"{requests} judged requests in one run, fewer than the policy's floor.minimum_requests of "
                f"{policy.floor.minimum_requests}",
            )
        )
    return problems


def _check_one_way(scenarios: list[Scenario], source: Source) -> list[Problem]:
    """Forced runs decide where there are any; a scenario without them would be driven and never compared."""
    free = [scenario.name for scenario in scenarios if "forced" not in scenario.decode]
    forced = [scenario.name for scenario in scenarios if "forced" in scenario.decode]
    if not free or not forced:
        return []
    return [
        Problem(
            source.where(("scenarios",)),
            f"decode [free] ({', '.join(free)}) beside forced decoding ({', '.join(forced)}) would never be "
            "compared: decode all scenarios in the same way, or make two releases",
        )
    ]


def _check_model(release: Release, source: Source, given: Path | None) -> list[Problem]:
    """A local model must be there, or at least its `config.json`, which must not contradict the release."""
    if not isinstance(release.model, LocalModel):
        what = "--model-config is for a model of kind local; this one is made by its seed"
        return [] if given is None else [Problem(source.where(("model",)), what)]
    path = given or source.path.parent / release.model.path / "config.json"
    if not path.is_file():
        what = f"no model there: {path} is missing; `qualify plan --model-config FILE` needs no more than it"
        return [Problem(source.where(("model", "path")), what)]
    try:
        config = read_model_config(path)
    except UsageError as error:
        return [Problem(error.where, error.what)]
    return [
        Problem(source.where(location), f"{location[-1]}: {what}")
        for location, what in contradictions(release, config)
    ]


def _check_side_by_side(release: Release, source: Source) -> list[Problem]:
    """Servers side by side share a card's memory: their shares must not exceed it."""
    if not release.serving.parallel_arms or release.replay != "full-graph":
        return []
    shares = gpu_shares(release, tuple(release.arms.configured()))
    if shares <= 1:
        return []
    return [
        Problem(
            source.where(("serving", "parallel_arms")),
            f"the arms' servers side by side take {shares:.0%} of a card's memory; lower {GPU_SHARE} "
            f"(vLLM's default is {GPU_SHARE_DEFAULT}) or leave parallel_arms out",
        )
    ]
