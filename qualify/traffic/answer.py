"""Reads what a completions server sends, as strictly as evidence must be read.

The server is asked for token ids in two ways, as ``token_ids`` and as ``token_id:N`` in place of each
token's text, and the two must agree. Nothing is repaired: what does not fit is a malformed answer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec

_TOKEN_PREFIX = "token_id:"


class MalformedAnswerError(Exception):
    """The answer is not what the protocol promises."""


class ServerSaidError(Exception):
    """The server reported an error within its answer.

    Args:
        message: What it said.
        status: The HTTP status that it would have answered with; None where it gave none.
    """

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class _Logprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _Choice(msgspec.Struct):
    index: int
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class _Error(msgspec.Struct):
    message: str = ""
    code: int | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Body).decode


@dataclass(slots=True)
class Answer:
    """An answer as far as it has come.

    Attributes:
        prompt: The token ids sent; the server's echo of them must equal these.
        top: Most probable tokens asked for at each position; with 0, only the emitted token's logprob.
        token_ids: Emitted tokens, length T.
        logprobs: Their natural-log probabilities, length T; None is NaN.
        top_ids: Most probable tokens at each position, best first, at most `top` each.
        top_logprobs: Their natural-log probabilities, shaped like `top_ids`; None is NaN.
        finish_reason: As the server said it.
    """

    prompt: Sequence[int]
    top: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    top_ids: list[tuple[int, ...]] = field(default_factory=list)
    top_logprobs: list[tuple[float | None, ...]] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, body: bytes | str) -> int:
        """Takes in one JSON body: a whole answer, or one chunk of a stream.

        Args:
            body: The JSON text.

        Returns:
            Number of tokens in it.

        Raises:
            MalformedAnswerError: It is not what was asked for.
            ServerSaidError: It is an error report.
        """
        try:
            parsed = _decode(body)
        except msgspec.DecodeError as error:
            raise MalformedAnswerError(f"{error}: {_excerpt(body)}") from error
        if parsed.error:
            raise ServerSaidError(parsed.error.message or _excerpt(body), parsed.error.code)
        if parsed.choices == []:
            return 0  # a usage report, which a server may be configured to append
        if parsed.choices is None or len(parsed.choices) != 1 or parsed.choices[0].index != 0:
            raise MalformedAnswerError(f"one choice with index 0 expected: {_excerpt(body)}")
        return self._take(parsed.choices[0])

    def _take(self, choice: _Choice) -> int:
        if self.finish_reason is not None:
            raise MalformedAnswerError("more came after the answer was said to be finished")
        self.finish_reason = choice.finish_reason
        if choice.prompt_token_ids is not None and tuple(choice.prompt_token_ids) != tuple(self.prompt):
            raise MalformedAnswerError("the server's prompt is not the one that was sent")
        if choice.token_ids is None:
            raise MalformedAnswerError("token_ids are missing")
        if choice.token_ids:
            self._take_logprobs(choice.token_ids, choice.logprobs)
        self.token_ids += choice.token_ids
        return len(choice.token_ids)

    def _take_logprobs(self, token_ids: list[int], logprobs: _Logprobs | None) -> None:
        if logprobs is None or logprobs.top_logprobs is None:
            raise MalformedAnswerError("logprobs are missing")
        count = len(token_ids)
        others = (logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs)
        if any(len(part) != count for part in others):
            raise MalformedAnswerError("token_ids, tokens, token_logprobs and top_logprobs differ in length")
        if list(map(_id, logprobs.tokens)) != token_ids:
            raise MalformedAnswerError("token_ids and tokens differ")
        self.logprobs += logprobs.token_logprobs
        for top in logprobs.top_logprobs:
            self._take_top(top or {})

    def _take_top(self, top: dict[str, float | None]) -> None:
        if len(top) < self.top:
            raise MalformedAnswerError(f"{len(top)} top logprobs, {self.top} asked for")
        ids, values = tuple(map(_id, top)), tuple(top.values())
        if not _descends(values):
            ids, values = _rank(ids, values)
        self.top_ids.append(ids[: self.top])
        self.top_logprobs.append(values[: self.top])


# operator.gt, called a hundred thousand times a second; on a None it raises TypeError.
_greater = cast("Callable[[float | None, float | None], bool]", operator.gt)


def _descends(values: tuple[float | None, ...]) -> bool:
    """True where each is a number and smaller than the one before: there is nothing to rank then."""
    try:
        return all(map(_greater, values, values[1:]))
    except TypeError:  # a NaN is among them
        return False


def _rank(
    ids: tuple[int, ...], values: tuple[float | None, ...]
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """Best first. vLLM lists the emitted token first, wherever it ranks.

    NaN ranks last. Ties go by id, so that two servers that agree write the same.
    """
    ranked = sorted(
        zip(ids, values, strict=True), key=lambda item: (item[1] is None, -(item[1] or 0.0), item[0])
    )
    return tuple(token for token, _ in ranked), tuple(value for _, value in ranked)


class _Ids(dict[str, int]):
    """Token ids by what stands for them in an answer: each is read once, and is one object ever after."""

    def __missing__(self, text: str) -> int:
        digits = text.removeprefix(_TOKEN_PREFIX)
        if digits == text or not digits.isdecimal():
            raise MalformedAnswerError(f"token ids were asked for, and {text!r} came")
        self[text] = token = int(digits)
        return token


# As large as the vocabulary that servers answer with.
_id = _Ids().__getitem__


def _excerpt(body: bytes | str) -> str:
    text = body.decode(errors="replace") if isinstance(body, bytes) else body
    return text if len(text) <= 120 else f"{text[:80]} ... {text[-40:]}"
