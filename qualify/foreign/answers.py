"""What a file of foreign transcripts says, before it becomes a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request's answer.

    Attributes:
        name: Identifies the request within its scenario; the same in every arm.
        prompt: What is known of its prompt; must be the same in every arm.
        context_tokens: Tokens of the prompt.
        token_ids: Emitted tokens.
        logprobs: Their natural-log probabilities; None is NaN or missing.
        top_ids: Most probable tokens at each position, best first.
        top_logprobs: Their natural-log probabilities.
        finish_reason: As the server said it.
    """

    name: str
    prompt: str
    context_tokens: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    top_ids: tuple[tuple[int, ...], ...]
    top_logprobs: tuple[tuple[float | None, ...], ...]
    finish_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRun:
    """One file: one scenario of one run of one server.

    Attributes:
        where: The file.
        scenario: Its scenario.
        number: Its run number.
        decode: ``free`` or ``forced``.
        answers: In the order in which they were sent.
        served: What the file says about the server, which must be the same in every arm, as (label, value).
        dispatch: Engine steps by graph mode and rows, e.g. ``FULL:8``, where they were counted.
        max_model_len: Longest context that the server accepts; None where unknown.
    """

    where: str
    scenario: str
    number: int
    decode: str
    answers: tuple[Answer, ...]
    served: tuple[tuple[str, str], ...] = ()
    dispatch: tuple[tuple[str, int], ...] = ()
    max_model_len: int | None = None
