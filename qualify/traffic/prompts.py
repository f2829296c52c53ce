"""Prompts: token ids that the scenario's seed decides, the same in every arm, run, machine and version."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from qualify.errors import UsageError
from qualify.record import ExpectedRequest
from qualify.scenario import Arrival, Phase, Scenario

_SMALLEST_VOCABULARY = 16


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token ids that prompts are made of.

    Attributes:
        size: Ids run from 0 to size - 1.
        special: Ids with a meaning of their own, which prompts do without; sorted.
    """

    size: int
    special: tuple[int, ...]

    def plain(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """All ids that are not special, sorted: int64, shape ``[size - len(special)]``."""
        return np.setdiff1d(np.arange(self.size, dtype=np.int64), np.array(self.special, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """A request with its prompt.

    Attributes:
        request_id: ``scenario/phase/index``.
        scenario: Its scenario.
        phase: Its phase.
        index: Position within the phase, over all repeats.
        judged: False for warm-up and polluting requests.
        prompt: Token ids.
        prompt_sha256: Their digest.
        max_tokens: Tokens to generate.
    """

    request_id: str
    scenario: str
    phase: str
    index: int
    judged: bool
    prompt: tuple[int, ...]
    prompt_sha256: str
    max_tokens: int


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
    return Vocabulary(size=config.vocab_size, special=within)


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
        Round(phase.name, phase.arrival, _requests(scenario, phase, repeat, plain))
        for phase in scenario.phases
        for repeat in range(phase.repeat)
    )


def _requests(
    scenario: Scenario, phase: Phase, repeat: int, plain: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> tuple[PlannedRequest, ...]:
    first = repeat * len(phase.context_tokens)
    requests = []
    for index, length in enumerate(phase.context_tokens, start=first):
        prompt = _prompt(scenario.seed, phase.name, index, length, plain)
        requests.append(
            PlannedRequest(
                request_id=f"{scenario.name}/{phase.name}/{index}",
                scenario=scenario.name,
                phase=phase.name,
                index=index,
                judged=phase.judged,
                prompt=prompt,
                prompt_sha256=prompt_digest(prompt),
                max_tokens=phase.decode_tokens,
            )
        )
    return tuple(requests)


def _prompt(
    seed: int, phase: str, index: int, length: int, plain: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> tuple[int, ...]:
    # numpy promises the raw stream of a bit generator and of SeedSequence for good, but not what
    # Generator.integers makes of it: hence the multiply-and-shift of our own.
    name = int.from_bytes(hashlib.sha256(phase.encode()).digest()[:8], "little")
    bits = np.random.PCG64(np.random.SeedSequence([seed, name, index]))
    upper = np.asarray(bits.random_raw(length), dtype=np.uint64) >> np.uint64(32)
    chosen = (upper * np.uint64(len(plain))) >> np.uint64(32)
    return tuple(plain[chosen.astype(np.int64)].tolist())


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
            context_tokens=len(request.prompt),
            max_tokens=request.max_tokens,
            prompt_sha256=request.prompt_sha256,
        )
        for round_ in plan_rounds(scenario, vocabulary)
        for request in round_.requests
    )
