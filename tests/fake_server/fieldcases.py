"""What went wrong in the field, acted out: when each case strikes, and what it does to an answer or a step.

Each case is a rule about a moment of the engine, taken from the catalogue of field cases. Where a case took
hours or thousands of tokens, its numbers are smaller here, and the rule says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

CAPTURED = (1, 2, 4, 8, 16, 32, 64, 128)
"""Sizes for which the fake server's graphs were captured; other batches are padded to the next."""

K = 3
"""Draft tokens of a speculating server."""


class Harm(StrEnum):
    """What becomes of one token."""

    OTHERS = "others"  # the distribution is another row's
    WRONG = "wrong"  # the distribution is of nothing that was asked
    NAN = "nan"  # no number; the token is 0, which is BOS
    LOOP = "loop"  # one of three tokens, round and round
    SAME = "same"  # one token for ever
    DOUBLE = "double"  # every other token repeats the one before
    MOVED = "moved"  # the second choice gains 2.4 nats
    SKIP = "skip"  # a token is left out


class Break(StrEnum):
    """What becomes of a step."""

    ILLEGAL_ACCESS = "CUDA error: an illegal memory access was encountered"
    ASSERTION = "AssertionError: num_computed_tokens does not match"
    SHAPE = "RuntimeError: shape mismatch in a padded batch"
    HANG = "hang"
    WARN = "warn"


@dataclass(frozen=True)
class Moment:
    """One row of one step.

    Attributes:
        row: Its row.
        rows: Rows of the step.
        prefill: Whether the step computes any prompt.
        context: Tokens of the row's request so far.
        contexts: Of all rows.
        prompt: Prompt tokens of the row's request.
        position: Tokens that it has generated.
        twins: Earlier rows with the same prompt.
        found: Prompt tokens that it found in the prefix cache.
        chance: From 0 to 1, of the prompt; the same in every run.
        luck: From 0 to 1, of this request in this run.
        begun: Requests that the server has begun.
        ended: Requests that it has ended.
        generated: Tokens that it has generated.
        poisoned: Whether the case has struck before.
        disturbed: Whether another prompt was computed while its request decoded.
        preempted: Whether a request of the step was preempted before.
    """

    row: int
    rows: int
    prefill: bool
    context: int
    contexts: tuple[int, ...]
    prompt: int
    position: int
    twins: int
    found: int
    chance: float
    luck: float
    begun: int
    ended: int
    generated: int
    poisoned: bool
    disturbed: bool
    preempted: bool

    @property
    def decode(self) -> bool:
        """A step of decoding alone, which a graph replays."""
        return not self.prefill

    @property
    def padded(self) -> int:
        """Rows of the graph."""
        return next((size for size in CAPTURED if size >= self.rows), self.rows)


Rule = Callable[[Moment], bool]


@dataclass(frozen=True)
class Acted:
    """A case.

    Attributes:
        what: What happens when it strikes.
        when: Whether it does.
    """

    what: Harm | Break
    when: Rule


ACTED: dict[str, Acted] = {
    "F01": Acted(Harm.OTHERS, lambda now: now.decode and now.twins > 0),
    "F02": Acted(Harm.LOOP, lambda now: now.ended >= 256 and now.rows >= 10 and now.chance < 0.29),
    "F03": Acted(Harm.NAN, lambda now: now.decode and now.row > 0 and len(set(now.contexts)) > 1),
    "F04": Acted(Harm.OTHERS, lambda now: now.decode and now.row > 0 and len(set(now.contexts)) > 1),
    "F05": Acted(Harm.OTHERS, lambda now: now.found > 2048),
    "F06": Acted(Harm.WRONG, lambda now: now.decode),
    "F10": Acted(Break.WARN, lambda now: now.decode),
    "F11": Acted(Harm.SKIP, lambda now: now.decode and now.position % 40 == 5),
    "F12": Acted(Harm.WRONG, lambda now: now.decode and now.padded == 8),
    "F14": Acted(Harm.WRONG, lambda now: now.found > 0 and now.prompt - now.found == K + 1),
    "F15": Acted(Break.SHAPE, lambda now: now.decode and now.rows == 3),
    "F16": Acted(Harm.NAN, lambda now: now.decode and (now.rows >= 2 or now.poisoned)),
    "F17": Acted(Harm.NAN, lambda now: now.decode and now.rows == 5 and now.row == 4),
    "F18": Acted(Harm.DOUBLE, lambda now: now.decode),
    "F20": Acted(Harm.SAME, lambda now: now.decode and now.row > 0),
    "F21": Acted(Harm.WRONG, lambda now: now.decode and now.chance < 0.93),
    "F22": Acted(Harm.MOVED, lambda now: now.decode and now.chance < 0.11),
    "F26": Acted(Break.ILLEGAL_ACCESS, lambda now: now.decode and now.rows >= 124),
    # a day and a half is 3,000 tokens here
    "F28": Acted(Break.ILLEGAL_ACCESS, lambda now: now.generated >= 3000),
    "F29": Acted(Break.HANG, lambda now: now.begun >= 7),
    "F29-eager": Acted(Break.HANG, lambda now: now.begun >= 45),
    # 400 to 4,000 tokens are 100 to 400 here
    "F32": Acted(Harm.WRONG, lambda now: now.decode and now.position >= 100),
    "F34": Acted(Harm.WRONG, lambda now: now.rows >= 32),
    "F36": Acted(Break.ASSERTION, lambda now: now.preempted),
    "F40": Acted(Harm.OTHERS, lambda now: now.disturbed),
    # the model's limit: the longest prompt, in every arm
    "F41": Acted(Harm.WRONG, lambda now: now.prompt >= 500),
    # 12,000 tokens are 350 here
    "F42": Acted(Harm.SAME, lambda now: now.position >= 350),
    "F43": Acted(Harm.WRONG, lambda now: now.generated >= 400),
    "F44": Acted(Harm.NAN, lambda now: now.decode),
    "F45": Acted(Harm.WRONG, lambda now: now.prompt > 64),
    "F47": Acted(Harm.LOOP, lambda now: now.decode and now.position >= 2 + 8 * now.luck),
    "F49": Acted(Harm.WRONG, lambda now: now.rows >= 4),
    "F50": Acted(Break.SHAPE, lambda now: now.decode and now.rows >= 30 and now.rows not in CAPTURED),
    "F51": Acted(Harm.MOVED, lambda now: now.rows >= 8),
    "F53": Acted(Break.HANG, lambda now: now.decode and now.rows >= 32),
}
"""Cases of the time when a server answers."""

AT_START: dict[str, str] = {
    "F07": "torch.AcceleratorError: CUDA error: an illegal memory access was encountered during capture",
    "F08": "AssertionError: active width 0 while capturing",
}
"""Cases in which the server does not start, with what it says."""

VERIFY_ROWS = 64
"""F09: a server that speculates does not start with more rows to verify than these."""


def accepted(case: str, generated: int) -> float:
    """Share of drafts that a speculating server accepts.

    Args:
        case: What is acted out; empty is nothing.
        generated: Tokens that it has generated.
    """
    if case == "F06":
        return 0.041
    if case == "F43":  # five minutes are 1,000 tokens here
        return max(0.015, 0.45 * (1 - generated / 1000))
    return 0.0 if case == "F44" else 0.758
