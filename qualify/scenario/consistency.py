"""What a scenario cannot ask for without contradicting itself, each complaint with its place in the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from qualify.requirements import Requirements
from qualify.scenario.arrival import HELD_EVERY_S
from qualify.scenario.phase import Asked, Phase
from qualify.yamlsource import Location

Complaint = tuple[Location, str]


def most_alive(phase: Phase) -> int:
    """Most requests of a phase that can be in flight at one time."""
    count = len(phase.asked)
    return min(count, phase.arrival.concurrency) if phase.arrival.concurrency else count


def _most_decoding(phase: Phase) -> int:
    """Most of its requests that can be in one decode step. A request's only token comes of its prefill."""
    return min(most_alive(phase), sum(asked.decode_tokens > 1 for asked in phase.asked))


def impossible_phase(phase: Phase, stream: bool, deadline_s: float) -> Iterator[Complaint]:
    """What a phase asks for in vain.

    Args:
        phase: The phase.
        stream: Whether answers are streamed.
        deadline_s: Of each request.

    Yields:
        (place within the phase, what is wrong).
    """
    kind = phase.arrival.kind
    held = sum(asked.after is None for asked in phase.asked)
    if kind == "held" and held * HELD_EVERY_S > deadline_s / 2:
        yield (
            ("arrival",),
            f"{held} requests are held one after another, {HELD_EVERY_S} s each: more than half of the "
            f"deadline of {deadline_s:g} s, which runs meanwhile; raise deadline_s",
        )
    if kind in ("held", "blocker") and not stream:
        yield (
            ("arrival",),
            f"arrival {kind!r} needs stream: true; nothing else tells that a request is queued",
        )
    if kind == "blocker" and len(phase.asked) < 2:
        yield ("arrival",), "arrival 'blocker' needs a second request, which waits behind the first"
    asked, first = phase.asked, 0
    for index, group in enumerate(phase.requests):
        if group.after is not None:
            for what in _wrong_wait(phase, asked, first, index, stream):
                yield ("requests", index, "after"), what
        first += group.number()


def _wrong_wait(phase: Phase, asked: Sequence[Asked], first: int, index: int, stream: bool) -> Iterator[str]:
    after = phase.requests[index].after
    assert after is not None
    if phase.arrival.kind not in ("together", "held"):
        yield f"after has no meaning with arrival {phase.arrival.kind!r}, which itself decides the times"
    if after.request is None or after.tokens is None:
        return
    if not stream:
        yield "waiting for tokens of another request needs stream: true"
    if after.request >= first:
        yield f"waits for request {after.request}, which is not before it: it is number {first} itself"
    elif after.tokens > asked[after.request].decode_tokens:
        yield (
            f"waits for token {after.tokens} of request {after.request}, "
            f"which generates {asked[after.request].decode_tokens}"
        )


def asked_but_impossible(
    requires: Requirements, phases: Sequence[Phase], stream: bool
) -> Iterator[Complaint]:
    """What a scenario requires of its load although its own requests cannot reach it.

    Args:
        requires: What it requires.
        phases: Its phases.
        stream: Whether answers are streamed.

    Yields:
        (place within the scenario, what is wrong).
    """
    judged = [phase for phase in phases if phase.judged]
    for name, what in (
        *_batches(requires, phases),
        *_lengths(requires, phases, judged),
        *_order(requires, phases),
        *_cache(requires, phases),
    ):
        yield ("requires", name), what
    if requires.prefill_during_decode and not stream:
        yield ("requires", "prefill_during_decode"), "needs stream: true, so that decoding can be seen"


def _batches(requires: Requirements, phases: Sequence[Phase]) -> Iterator[tuple[str, str]]:
    most = max((most_alive(phase) for phase in phases), default=0)
    if requires.in_flight > most:
        yield (
            "in_flight",
            f"{requires.in_flight} requests at one time are required, and no phase has more than {most}",
        )
    rows, decoding = max(requires.rows, default=0), max(map(_most_decoding, phases), default=0)
    if rows > decoding:
        yield (
            "rows",
            f"{rows} requests at one time are required that decode (a second token, and more), "
            f"and no phase has more than {decoding}",
        )
    if requires.identical_prompts:
        same = max((_identical(phase) for phase in phases), default=0)
        if requires.identical_prompts > same:
            yield (
                "identical_prompts",
                f"{requires.identical_prompts} requests with one prompt are required, and at most {same} "
                "of a phase name the same prompt and length",
            )
    if requires.preemptions and most < 2:
        yield "preemptions", "a request alone is never preempted: ask for more at one time"
    if requires.prefill_during_decode and not any(
        most_alive(phase) > 1 and _most_decoding(phase) for phase in phases
    ):
        yield "prefill_during_decode", "one request at a time cannot compute a prompt beside another's decode"


def _identical(phase: Phase) -> int:
    named = Counter(
        (asked.prompt, asked.context_tokens)
        for asked in phase.asked
        if asked.prompt is not None and asked.decode_tokens > 1
    )
    return min(most_alive(phase), max(named.values(), default=0))


def _lengths(
    requires: Requirements, phases: Sequence[Phase], judged: Sequence[Phase]
) -> Iterator[tuple[str, str]]:
    for boundary in requires.straddled_tokens:
        if not any(_straddles(phase, boundary) for phase in phases):
            yield (
                "straddled_tokens",
                f"no phase has a request that stays within {boundary} tokens beside one that goes beyond",
            )
    longest = max((asked.decode_tokens for phase in judged for asked in phase.asked), default=0)
    if requires.decoded_tokens > longest:
        yield (
            "decoded_tokens",
            f"{requires.decoded_tokens} generated tokens are required, and no judged request asks for more "
            f"than {longest}",
        )


def _straddles(phase: Phase, boundary: int) -> bool:
    """Whether one of its requests can decode within the boundary while another decodes beyond it."""
    decoding = [asked for asked in phase.asked if asked.decode_tokens > 1]
    within = [asked.context_tokens < boundary for asked in decoding]
    beyond = [asked.context_tokens + asked.decode_tokens > boundary for asked in decoding]
    # one request that crosses the boundary while it decodes is both, and is not two
    either = sum(one or other for one, other in zip(within, beyond, strict=True))
    return most_alive(phase) > 1 and any(within) and any(beyond) and either > 1


def _order(requires: Requirements, phases: Sequence[Phase]) -> Iterator[tuple[str, str]]:
    before = 0
    for phase in phases:
        if phase.judged:
            break
        before += len(phase.asked) * phase.repeat
    if requires.warmup_requests > before:
        yield (
            "warmup_requests",
            f"{requires.warmup_requests} requests before the first judged one are required, "
            f"and there are {before}",
        )


def _cache(requires: Requirements, phases: Sequence[Phase]) -> Iterator[tuple[str, str]]:
    shared: Counter[str] = Counter()
    lengths: dict[str, int] = {}
    for phase in phases:
        for asked in phase.asked:
            tokens = asked.prefix.tokens if asked.prefix else asked.context_tokens
            name = f"prefix {asked.prefix.name}" if asked.prefix else f"prompt {asked.prompt}"
            if asked.prefix or asked.prompt:
                shared[name] += phase.repeat
                lengths[name] = max(lengths.get(name, 0), tokens)
    reachable = max((lengths[name] for name, count in shared.items() if count > 1), default=0)
    if requires.prefix_hits and not reachable:
        yield "prefix_hits", "no two requests share a prefix or a prompt, so nothing can be hit"
    if requires.prefix_hit_tokens > reachable:
        yield (
            "prefix_hit_tokens",
            f"{requires.prefix_hit_tokens} tokens are required, and requests share at most {reachable}",
        )
    tails = {asked.tail_tokens for phase in phases for asked in phase.asked}
    if missing := sorted(set(requires.prompt_tails) - tails):
        yield "prompt_tails", f"no request has tail_tokens of {', '.join(map(str, missing))}"
