"""Prompts: token ids that the scenario's seed decides, the same in every arm, run, machine and version."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from qualify.errors import UsageError
from qualify.record import ExpectedRequest
from qualify.scenario import After, Arrival, Asked, Phase, Scenario
from qualify.traffic.questions import Asking, Question, question
from qualify.yamlsource import Location

_SMALLEST_VOCABULARY = 16
PlainIds = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token ids that prompts are made of.

    Attributes:
        size: Ids run from 0 to size - 1.
        special: Ids with a meaning of their own, which prompts do without; sorted.
        bos: Id of the beginning-of-sequence token; None where the model has none.
        tokenizer: The model's ``tokenizer.json``; None where it has none.
    """

    size: int
    special: tuple[int, ...]
    bos: int | None = None
    tokenizer: Path | None = None

    def plain(self) -> PlainIds:
        """All ids that are not special, sorted: int64, shape ``[size - len(special)]``."""
        return np.setdiff1d(np.arange(self.size, dtype=np.int64), np.array(self.special, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a prompt.

    Attributes:
        name: Decides its tokens, together with `index` and the scenario's seed.
        index: See `name`.
        tokens: How many.
    """

    name: str
    index: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedRequest:
    """A request whose prompt is made when it is needed: thousands of prompts at once would fill the memory.

    Attributes:
        request_id: ``scenario/phase/index``.
        scenario: Its scenario.
        phase: Its phase.
        index: Position within the phase, over all repeats.
        judged: False for warm-up and polluting requests.
        context_tokens: Length of its prompt.
        max_tokens: Tokens to generate.
        after: What it waits for, by position within its round.
        pieces: Its prompt's parts; a question takes the place of the last.
        seed: The scenario's.
        plain: Ids that prompts are made of.
        asking: What decides its question; None where no answer is known.
    """

    request_id: str
    scenario: str
    phase: str
    index: int
    judged: bool
    context_tokens: int
    max_tokens: int
    after: After | None
    pieces: tuple[Piece, ...]
    seed: int
    plain: PlainIds
    asking: Asking | None = None

    @property
    def question(self) -> Question | None:
        """Its question, made anew at each call; None where no answer is known.

        Raises:
            UsageError: It needs a tokenizer and there is none, or more tokens than it may have.
        """
        return question(self.asking, self.plain.tolist()) if self.asking else None

    @property
    def prompt(self) -> tuple[int, ...]:
        """Token ids, made anew at each call."""
        asked = self.question
        pieces = self.pieces if asked is None else self.pieces[:-1]
        plain = tuple(token for piece in pieces for token in _tokens(self.seed, piece, self.plain))
        return plain if asked is None else plain + asked.prompt


@dataclass(frozen=True, slots=True)
class Round:
    """One repeat of a phase: its requests are sent, and all have ended before the next round starts.

    Attributes:
        phase: The phase's name.
        arrival: When its requests arrive.
        requests: In sending order.
    """

    phase: str
    arrival: Arrival
    requests: tuple[PlannedRequest, ...]


TokenIds = int | list[int] | None
_File = TypeVar("_File", "_Config", "_Tokenizer")


class _Config(msgspec.Struct):
    vocab_size: int | None = None
    bos_token_id: TokenIds = None
    eos_token_id: TokenIds = None
    pad_token_id: TokenIds = None


class _AddedToken(msgspec.Struct):
    id: int


class _Tokenizer(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


def read_vocabulary(model: Path) -> Vocabulary:
    """Reads a checkpoint's vocabulary.

    Args:
        model: Directory with ``config.json``; ``generation_config.json`` and ``tokenizer.json`` are read for
            further special ids where they are.

    Returns:
        The vocabulary.

    Raises:
        UsageError: There is no such directory or file, or it does not say how large the vocabulary is.
    """
    path = model / "config.json"
    if not path.is_file():
        raise UsageError(
            "there is no checkpoint: config.json is missing",
            where=str(model),
            advice="Correct model.path in the release file, or make the checkpoint.",
        )
    config = _read(path, _Config)
    if config.vocab_size is None or config.vocab_size < _SMALLEST_VOCABULARY:
        raise UsageError(
            f"vocab_size is {config.vocab_size}, which no prompt can be made of", where=str(path)
        )
    special = _ids(config)
    if (generation := model / "generation_config.json").is_file():
        special |= _ids(_read(generation, _Config))
    if (tokenizer := model / "tokenizer.json").is_file():
        special |= {token.id for token in _read(tokenizer, _Tokenizer).added_tokens}
    within = tuple(sorted(token for token in special if 0 <= token < config.vocab_size))
    bos = config.bos_token_id
    first = next(iter(bos), None) if isinstance(bos, list) else bos
    return Vocabulary(
        size=config.vocab_size,
        special=within,
        bos=first,
        tokenizer=tokenizer if tokenizer.is_file() else None,
    )


def _read(path: Path, kind: type[_File]) -> _File:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"cannot be read: {error}", where=str(path)) from error


def _ids(config: _Config) -> set[int]:
    ids: set[int] = set()
    for value in (config.bos_token_id, config.eos_token_id, config.pad_token_id):
        ids |= {value} if isinstance(value, int) else set(value or ())
    return ids


def prompt_digest(token_ids: Sequence[int]) -> str:
    """Digest of token ids.

    Args:
        token_ids: Ids below 2**32.

    Returns:
        SHA-256 of the ids as little-endian 32-bit integers, in hex.
    """
    return hashlib.sha256(np.asarray(token_ids, dtype="<u4").tobytes()).hexdigest()


def plan_rounds(scenario: Scenario, vocabulary: Vocabulary) -> tuple[Round, ...]:
    """All requests of a scenario with their prompts.

    Args:
        scenario: The scenario.
        vocabulary: Of the model.

    Returns:
        Its rounds in order: one for each repeat of each phase. Repeats have prompts of their own.
    """
    plain = vocabulary.plain()
    return tuple(
        Round(phase.name, phase.arrival, _requests(scenario, phase, repeat, vocabulary, plain))
        for phase in scenario.phases
        for repeat in range(phase.repeat)
    )


def unaskable(scenario: Scenario, vocabulary: Vocabulary) -> Iterator[tuple[Location, str]]:
    """What a scenario asks that cannot be asked of a model.

    Args:
        scenario: The scenario.
        vocabulary: Of the model.

    Yields:
        (place within the scenario, what is wrong), at most one for each group of requests.
    """
    plain = vocabulary.plain()
    for at, phase in enumerate(scenario.phases):
        requests = iter(_requests(scenario, phase, 0, vocabulary, plain))
        for number, group in enumerate(phase.requests):
            own = list(itertools.islice(requests, group.number()))
            for request in own if group.ask is not None else ():
                try:
                    _ = request.question
                except UsageError as error:
                    yield ("phases", at, "requests", number), f"{error.what}. {error.advice}"
                    break


def _requests(
    scenario: Scenario, phase: Phase, repeat: int, vocabulary: Vocabulary, plain: PlainIds
) -> tuple[PlannedRequest, ...]:
    asked = phase.asked
    return tuple(
        PlannedRequest(
            request_id=f"{scenario.name}/{phase.name}/{index}",
            scenario=scenario.name,
            phase=phase.name,
            index=index,
            judged=phase.judged,
            context_tokens=one.context_tokens,
            max_tokens=one.decode_tokens,
            after=one.after,
            pieces=_pieces(one, phase.name, index),
            seed=scenario.seed,
            plain=plain,
            asking=_asking(scenario, phase, index, one, vocabulary),
        )
        for index, one in enumerate(asked, start=repeat * len(asked))
    )


def _asking(
    scenario: Scenario, phase: Phase, index: int, asked: Asked, vocabulary: Vocabulary
) -> Asking | None:
    if asked.ask is None:
        return None
    return Asking(
        kind=asked.ask,
        seed=scenario.seed,
        name=phase.name,
        index=index,
        tokens=asked.context_tokens - (asked.prefix.tokens if asked.prefix else 0),
        tokenizer=vocabulary.tokenizer,
        bos=None if asked.prefix else vocabulary.bos,
    )


def _pieces(asked: Asked, phase: str, index: int) -> tuple[Piece, ...]:
    # no name of a phase has a slash, so shared pieces never repeat a request's own
    if asked.prompt is not None:
        return (Piece(f"prompt/{asked.prompt}", 0, asked.context_tokens),)
    own = asked.context_tokens
    if asked.prefix is None:
        return (Piece(phase, index, own),)
    begin = asked.prefix.tokens
    return (Piece(f"prefix/{asked.prefix.name}", 0, begin), Piece(phase, index, own - begin))


def _tokens(seed: int, piece: Piece, plain: PlainIds) -> list[int]:
    # numpy promises the raw stream of a bit generator and of SeedSequence for good, but not what
    # Generator.integers makes of it: hence the multiply-and-shift of our own.
    name = int.from_bytes(hashlib.sha256(piece.name.encode()).digest()[:8], "little")
    bits = np.random.PCG64(np.random.SeedSequence([seed, name, piece.index]))
    upper = np.asarray(bits.random_raw(piece.tokens), dtype=np.uint64) >> np.uint64(32)
    chosen = (upper * np.uint64(len(plain))) >> np.uint64(32)
    tokens: list[int] = plain[chosen.astype(np.int64)].tolist()
    return tokens


def expected_requests(scenario: Scenario, vocabulary: Vocabulary) -> tuple[ExpectedRequest, ...]:
    """The requests that each run of each arm must have answered.

    Args:
        scenario: The scenario.
        vocabulary: Of the model.

    Returns:
        One for each request of each round, in sending order.
    """
    return tuple(
        ExpectedRequest(
            request_id=request.request_id,
            scenario=scenario.name,
            judged=request.judged,
            context_tokens=request.context_tokens,
            max_tokens=request.max_tokens,
            prompt_sha256=prompt_digest(request.prompt),
            answer_ids=asked.answers if (asked := request.question) else (),
        )
        for round_ in plan_rounds(scenario, vocabulary)
        for request in round_.requests
    )
