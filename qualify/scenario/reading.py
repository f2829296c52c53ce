"""Reads a scenario file as one of its profiles has it, after all of its profiles have been checked."""

from __future__ import annotations

from dataclasses import dataclass

from qualify.scenario.expansion import Expansion, expand, profiles_of
from qualify.scenario.model import Scenario
from qualify.yamlsource import Problem, Source, parse


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """A scenario that was read.

    Attributes:
        scenario: The scenario in the chosen profile.
        expansion: Where its values stand, and the files that it was made of.
        profile: The profile; None where the file has none.
    """

    scenario: Scenario
    expansion: Expansion
    profile: str | None


def read_scenario(source: Source, profile: str | None) -> ScenarioFile | list[Problem]:
    """Reads a scenario file.

    Args:
        source: The file.
        profile: The profile that the release, or its user, chose; a file without profiles takes any.

    Returns:
        The scenario, or every problem of every profile.
    """
    known = profiles_of(source)
    problems: list[Problem] = []
    chosen: ScenarioFile | None = None
    for name in known or (None if profile is None else profile,):
        expansion = expand(source, name)
        scenario = None if expansion.problems else parse(expansion, Scenario)
        if isinstance(scenario, Scenario):
            if name == profile or not known:
                chosen = ScenarioFile(scenario, expansion, name if known else None)
        else:
            problems += [*expansion.problems, *(scenario or [])]
    if problems:
        return list(dict.fromkeys(problems))
    if chosen is None:
        what = f"there is no profile {profile!r}" if profile else "a profile must be chosen"
        advice = "name one in the release (profile: NAME) or with --profile"
        return [Problem(source.where(("profiles",)), f"{what}: {', '.join(known)}; {advice}")]
    return chosen
