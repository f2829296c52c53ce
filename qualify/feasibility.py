"""What a scenario asks for that the release's server cannot do, found before anything is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qualify.release import Release
from qualify.scenario import RequestGroup, Scenario
from qualify.serving.arms import SPECULATION, Argument, arm_settings
from qualify.transcript import Arm
from qualify.yamlsource import Located, Location, Problem


def unfulfillable(scenario: Scenario, source: Located, release: Release) -> list[Problem]:
    """Compares a scenario with the limits of the release's server.

    Args:
        scenario: The scenario.
        source: Where its values stand.
        release: The release.

    Returns:
        One problem, with its place, for each thing that cannot be.
    """
    found = [*_too_long(scenario, release), *_too_many(scenario, release)]
    for arm in release.arms.configured():
        arguments = arm_settings(release, arm).arguments
        found += [*_uncached(scenario, arguments), *_speculating(scenario, arm, arguments)]
    return [Problem(source.where(at), what) for at, what in dict.fromkeys(found)]


def _too_long(scenario: Scenario, release: Release) -> Iterator[tuple[Location, str]]:
    limit = release.serving.max_model_len
    for index, phase in enumerate(scenario.phases):
        asked = phase.asked
        longest = max(range(len(asked)), key=lambda at: asked[at].context_tokens + asked[at].decode_tokens)
        tokens = asked[longest].context_tokens + asked[longest].decode_tokens
        if tokens <= limit:
            continue
        if phase.requests:
            at: Location = ("phases", index, "requests", _group_of(phase.requests, longest))
        else:
            at = ("phases", index, "context_tokens", longest)
        yield (
            at,
            f"phase {phase.name!r} reaches {tokens} tokens (prompt and generated), more than the release's "
            f"max_model_len of {limit}",
        )


def _group_of(groups: tuple[RequestGroup, ...], request: int) -> int:
    for index, group in enumerate(groups):
        request -= group.number()
        if request < 0:
            return index
    raise IndexError(request)


def _too_many(scenario: Scenario, release: Release) -> Iterator[tuple[Location, str]]:
    limit = release.serving.max_num_seqs
    requires = scenario.requires
    for name, rows in (
        ("rows", max(requires.rows, default=0)),
        ("identical_prompts", requires.identical_prompts),
    ):
        if rows > limit:
            yield (
                ("requires", name),
                f"{rows} rows in one step are required, more than the release's max_num_seqs of {limit}",
            )


def _uncached(scenario: Scenario, arguments: Mapping[str, Argument]) -> Iterator[tuple[Location, str]]:
    if arguments.get("enable-prefix-caching", True) is not False and not arguments.get(
        "no-enable-prefix-caching"
    ):
        return
    requires = scenario.requires
    for name, wanted in (
        ("prefix_hits", requires.prefix_hits),
        ("prefix_hit_tokens", requires.prefix_hit_tokens),
        ("prompt_tails", requires.prompt_tails),
    ):
        if wanted:
            yield (
                ("requires", name),
                "hits of the prefix cache are required, and the release has enable-prefix-caching: false",
            )
    for index, phase in enumerate(scenario.phases):
        for number, group in enumerate(phase.requests):
            if group.tail_tokens is not None:
                yield (
                    ("phases", index, "requests", number, "tail_tokens"),
                    "a prompt's tail is computed alone only after a prefix hit, and the release serves with "
                    "enable-prefix-caching: false",
                )


def _speculating(
    scenario: Scenario, arm: Arm, arguments: Mapping[str, Argument]
) -> Iterator[tuple[Location, str]]:
    speculates = SPECULATION in arguments
    if speculates and "forced" in scenario.decode:
        yield (
            ("decode",),
            f"vLLM forces no tokens while it speculates, and the {arm} has a {SPECULATION}: "
            "decode [free] only",
        )
    wanted = scenario.requires.speculation
    if arm is not Arm.BASELINE and wanted is not None and wanted != speculates:
        yield (
            ("requires", "speculation"),
            f"speculation: {str(wanted).lower()} is required, and the {arm} has "
            f"{'a' if speculates else 'no'} {SPECULATION}",
        )
