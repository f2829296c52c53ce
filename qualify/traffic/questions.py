"""Prompts whose right answer is known: a needle in a text, a sum, a stretch of tokens to go on repeating.

They are completions, not chats, so that models with and without a chat template can be asked. Whether a model
can answer them at all is for the baseline to show: an answer that it misses, too, says nothing.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from qualify.errors import UsageError
from qualify.scenario import Known

_STRETCH = 16
"""Tokens of the stretch that is repeated: longer than what a model would repeat by chance."""

_REPEATED = 8
"""Tokens of it that a right answer goes on with."""

_ARTICLES = {"needle": "a needle", "arithmetic": "a sum", "echo": "an echo"}
_SMALL = 90
_COLOURS = ("red", "blue", "green", "yellow", "white", "black", "brown", "grey")
_THINGS = ("box", "door", "coat", "boat", "house", "book", "chair", "lamp")
_FILLER = (
    " The morning was quiet and the road was wet after the rain.",
    " Somebody had left a basket of apples beside the gate.",
    " In the afternoon the wind turned and the sky became clear.",
    " The train to the coast was late again, as on most days.",
    " A dog ran along the fence and lay down in the shade.",
    " They talked about the harvest and the price of bread.",
    " The old bridge was closed, so everybody took the ferry.",
    " In the evening the lights of the village could be seen from the hill.",
)


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt with its answer.

    Attributes:
        prompt: Token ids.
        answers: Ways to write a right answer as token ids; one of them must occur in what is generated.
    """

    prompt: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Asking:
    """What decides a question.

    Attributes:
        kind: Its kind.
        seed: Of the scenario.
        name: Of the phase.
        index: Position of the request within the phase.
        tokens: Length of the prompt, without a prefix that it comes after.
        tokenizer: The model's ``tokenizer.json``; None where it has none.
        bos: Id that text begins with; None where the model has none, or the question comes after a prefix.
    """

    kind: Known
    seed: int
    name: str
    index: int
    tokens: int
    tokenizer: Path | None
    bos: int | None


def question(asking: Asking, plain: Sequence[int]) -> Question:
    """Makes a question: the same for the same arguments, in every arm, run and version.

    Args:
        asking: What decides it.
        plain: Token ids without a meaning of their own, of which a stretch to repeat is made.

    Returns:
        The question; its prompt has exactly ``asking.tokens`` tokens.

    Raises:
        UsageError: It needs a tokenizer and there is none, or more tokens than it may have.
    """
    dice = _dice(asking)
    if asking.kind == "echo":
        return _echo(asking, plain, dice)
    if asking.tokenizer is None:
        raise UsageError(
            f"{_asked(asking)}, which is text, and the model has no tokenizer.json",
            advice="Ask an echo, which is made of token ids, or add the tokenizer to the checkpoint.",
        )
    words = _words(asking.tokenizer)
    made = _needle(asking, words, dice) if asking.kind == "needle" else _sum(asking, words, dice)
    assert len(made.prompt) == asking.tokens
    return made


def _dice(asking: Asking) -> Iterator[int]:
    """Unsigned 32-bit numbers. numpy promises the raw stream of a bit generator for good."""
    name = int.from_bytes(hashlib.sha256(f"ask/{asking.name}".encode()).digest()[:8], "little")
    bits = np.random.PCG64(np.random.SeedSequence([asking.seed, name, asking.index]))
    while True:
        yield int(bits.random_raw()) >> 32


def _choose(dice: Iterator[int], count: int) -> int:
    return (next(dice) * count) >> 32


@functools.lru_cache(maxsize=2)
def _words(path: Path) -> Callable[[str], list[int]]:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # what it raises has no type of its own
        raise UsageError(f"the tokenizer cannot be read: {error}", where=str(path)) from error

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def _echo(asking: Asking, plain: Sequence[int], dice: Iterator[int]) -> Question:
    if asking.tokens < 2 * _STRETCH:
        raise _too_short(asking, 2 * _STRETCH)
    stretch = [int(plain[_choose(dice, len(plain))]) for _ in range(_STRETCH)]
    # the prompt ends where a stretch ends
    times = -(-asking.tokens // _STRETCH)
    prompt = (stretch * times)[-asking.tokens :]
    return Question(tuple(prompt), (tuple(stretch[:_REPEATED]),))


def _needle(asking: Asking, words: Callable[[str], list[int]], dice: Iterator[int]) -> Question:
    thing = f"{_COLOURS[_choose(dice, len(_COLOURS))]} {_THINGS[_choose(dice, len(_THINGS))]}"
    number = str(10_000 + _choose(dice, 90_000))
    needle = words(f"\nThe secret number of the {thing} is {number}.\n")
    end = words(f"\nQuestion: What is the secret number of the {thing}?\nAnswer: The secret number is")
    begin = [] if asking.bos is None else [asking.bos]
    room = asking.tokens - len(begin) - len(needle) - len(end)
    if room < 1:
        raise _too_short(asking, asking.tokens - room + 1)
    filler: list[int] = []
    while len(filler) < room:
        filler += words(_FILLER[_choose(dice, len(_FILLER))])
    at = _choose(dice, room)
    prompt = [*begin, *filler[:at], *needle, *filler[at:room], *end]
    return Question(tuple(prompt), _written(words, number))


def _sum(asking: Asking, words: Callable[[str], list[int]], dice: Iterator[int]) -> Question:
    def two() -> tuple[int, int]:
        return 10 + _choose(dice, _SMALL), 10 + _choose(dice, _SMALL)

    left, right = two()
    end = words(f"{left} + {right} =")
    begin = [] if asking.bos is None else [asking.bos]
    room = asking.tokens - len(begin) - len(end)
    if room < 1:
        raise _too_short(asking, asking.tokens - room + 1)
    shown: list[int] = []
    while len(shown) < room:
        a, b = two()
        shown = words(f"{a} + {b} = {a + b}\n") + shown
    prompt = [*begin, *shown[len(shown) - room :], *end]
    return Question(tuple(prompt), _written(words, str(left + right)))


def _written(words: Callable[[str], list[int]], answer: str) -> tuple[tuple[int, ...], ...]:
    """An answer after a space, in the middle of a text, and by itself: tokenizers write these differently."""
    middle = words(f"is {answer}")
    is_ = words("is")
    ways = [words(f" {answer}"), words(answer)]
    if middle[: len(is_)] == is_:
        ways.append(middle[len(is_) :])
    return tuple(dict.fromkeys(tuple(way) for way in ways if way))


def _asked(asking: Asking) -> str:
    return f"{asking.name}/{asking.index} asks {_ARTICLES[asking.kind]}"


def _too_short(asking: Asking, needed: int) -> UsageError:
    return UsageError(
        f"{_asked(asking)} in {asking.tokens} tokens; it needs {needed}",
        advice="Give its request more context_tokens.",
    )
