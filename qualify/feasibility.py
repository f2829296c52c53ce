"""What a scenario asks for that the release's server cannot do, found before anything is started."""

from __future__ import annotations

from collections.abc import Iterator

from qualify.release import Release
from qualify.scenario import RequestGroup, Scenario
from qualify.yamlsource import Located, Location, Problem

Arguments = dict[str, str | int | float | bool]


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
    for arm in release.arms.configured().values():
        arguments = release.serving.arguments | arm.arguments
        found += [*_uncached(scenario, arguments), *_speculating(scenario, arguments)]
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


def _uncached(scenario: Scenario, arguments: Arguments) -> Iterator[tuple[Location, str]]:
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


def _speculating(scenario: Scenario, arguments: Arguments) -> Iterator[tuple[Location, str]]:
    wanted = scenario.requires.speculation
    written = arguments.get("speculative-config")
    if wanted is None or wanted == (written is not None):
        return
    has = "has a speculative-config" if written is not None else "has no speculative-config"
    yield (
        ("requires", "speculation"),
        f"speculation: {str(wanted).lower()} is required, and the release {has}",
    )
