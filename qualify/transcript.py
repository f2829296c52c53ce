"""Transcripts: what one request sent and got.

A transcript is one JSON line, written when its request has finished. Floats
that JSON cannot hold are written so that they stay visible to the judge:
NaN as ``null``; minus infinity as :data:`MINUS_INFINITY`, which is also what
vLLM's own server sends for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from qualify.errors import EvidenceError
from qualify.jsonlines import Int, open_lines

MINUS_INFINITY = -9999.0


class Arm(StrEnum):
    """One way of serving the release."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"
    CONTROL = "control"


class Decode(StrEnum):
    """Whether the server chose the tokens or was made to emit given ones."""

    FREE = "free"
    FORCED = "forced"
    ALONE = "alone"  # forced, a few requests one at a time


@dataclass(frozen=True, slots=True)
class RunKey:
    """One drive of all scenarios against one arm: the unit of decision.

    Attributes:
        arm: The arm that was driven.
        decode: Free or forced decoding, or a few requests forced one at a time.
        number: 1, 2, ... within the arm and the way of decoding.
    """

    arm: Arm
    decode: Decode
    number: int

    def __str__(self) -> str:
        return f"{self.arm}.{self.decode}.run{self.number}"


def planned_runs(arm: Arm, ways: Collection[str], repeats: int) -> list[RunKey]:
    """The runs that an arm is driven with, in order: free first, since its tokens are what is forced.

    Args:
        arm: The arm.
        ways: Ways of decoding that any scenario asks for.
        repeats: How often the baseline is forced; the other arms are forced once.

    Returns:
        One free run, then the forced ones, then one of requests alone; none alone of the control, whose fault
        is known. Where nothing is forced, the floor is how far the baseline's free runs are apart: then it
        decodes freely as often as it would have been forced, and at least twice.
    """
    baseline, forced = arm is Arm.BASELINE, Decode.FORCED in ways
    counts = {
        Decode.FREE: max(repeats, 2) if baseline and not forced else 1,
        Decode.FORCED: repeats if baseline else 1,
        Decode.ALONE: 0 if arm is Arm.CONTROL else 1,
    }
    return [
        RunKey(arm, way, number + 1)
        for way, count in counts.items()
        if way in ways
        for number in range(count)
    ]


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Why a request has no complete answer.

    Attributes:
        kind: ``refused`` | ``http`` | ``timeout`` | ``disconnected`` | ``malformed`` | ``incomplete`` |
            ``cancelled``.
        message: What the server or the client said, at most a few hundred characters.
        status: HTTP status where there was one.
    """

    kind: str
    message: str
    status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What one request sent and got.

    Attributes:
        request_id: ``scenario/phase/index``: the same in every arm and run.
        server_request_id: The id sent to the server for this request of this run.
        scenario: Name of the scenario.
        phase: Name of the scenario's phase.
        index: Position of the request within its phase, in sending order.
        judged: False for warm-up and polluting requests.
        run: The run that this request belongs to.
        prompt_sha256: Digest of the prompt's token ids (see `prompt_digest`).
        context_tokens: Length of the prompt in tokens.
        max_tokens: Tokens asked for.
        forced_sha256: Digest of the forced token ids; None in free decoding.
        token_ids: Emitted tokens, length T.
        logprobs: Natural-log probability of each emitted token, length T; None is NaN or missing.
        top_ids: Ids of the most probable tokens at each position, best first, T lists.
        top_logprobs: Their natural-log probabilities, shaped like `top_ids`; None is NaN.
        finish_reason: As the server said it; None where no final message came.
        failure: Why the answer is not complete; None where it is.
        sent_s: Seconds from the start of the run until the request was sent.
        first_token_s: ... until its first token; None where none came.
        finished_s: ... until it ended.
    """

    request_id: str
    server_request_id: str
    scenario: str
    phase: str
    index: int
    judged: bool
    run: RunKey
    prompt_sha256: str
    context_tokens: int
    max_tokens: int
    forced_sha256: str | None
    token_ids: tuple[Int, ...]
    logprobs: tuple[float | None, ...]
    top_ids: tuple[tuple[Int, ...], ...]
    top_logprobs: tuple[tuple[float | None, ...], ...]
    finish_reason: str | None
    failure: RequestFailure | None
    sent_s: float
    first_token_s: float | None
    finished_s: float

    @property
    def complete(self) -> bool:
        """True where every token asked for came, with its logprobs."""
        lengths = {len(self.token_ids), len(self.logprobs), len(self.top_ids), len(self.top_logprobs)}
        return self.failure is None and len(lengths) == 1


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Transcript)


def encode(transcript: Transcript) -> bytes:
    """One JSON line, newline included."""
    return _encoder.encode(transcript) + b"\n"


def read_transcripts(path: Path) -> Iterator[Transcript]:
    """Reads a transcript file, plain or gzip-compressed, one line at a time.

    Args:
        path: A ``.jsonl`` or ``.jsonl.gz`` file.

    Yields:
        The transcripts in the order in which their requests finished.

    Raises:
        EvidenceError: A line is no transcript, or its lists do not fit together; names file and line.
    """
    with open_lines(path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                transcript = _decoder.decode(line)
            except msgspec.DecodeError as error:
                raise EvidenceError(
                    f"not a transcript ({error})",
                    where=f"{path}:{number}",
                    advice="The file is damaged or was cut; run again.",
                ) from error
            if list(map(len, transcript.top_ids)) != list(map(len, transcript.top_logprobs)):
                raise EvidenceError(
                    "top_ids and top_logprobs are not of the same shape",
                    where=f"{path}:{number}",
                    advice="The file is damaged; run again.",
                )
            yield transcript
