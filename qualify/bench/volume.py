"""Ten thousand requests through our client: ``python -m qualify.bench.volume [REQUESTS]``.

Checks that its memory stays small, that nothing is lost or changed, and that order and times are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from qualify.bench.client import Level, Measured, measure
from qualify.bench.drive import RUN, TOKENS, scenario
from qualify.bench.stand_in import VOCABULARY, Kind, chunks
from qualify.bench.tools import TOOLS
from qualify.traffic.answer import Answer
from qualify.traffic.prompts import Vocabulary, expected_requests
from qualify.transcript import Transcript, read_transcripts

REQUESTS, IN_FLIGHT = 10_000, 250
MEMORY_BYTES = 500 << 20
_WORK = Path(".cache/bench/volume")


def problems(path: Path, requests: int, in_flight: int) -> list[str]:
    """What is wrong with the transcripts of a run against the stand-in server.

    Args:
        path: The transcripts.
        requests: Sent.
        in_flight: At once.

    Returns:
        One line for each kind of problem; nothing where every answer is complete, as sent, and in order.
    """
    expected = {
        request.request_id: request
        for request in expected_requests(scenario(requests, in_flight), Vocabulary(VOCABULARY, ()))
    }
    ring = _ring()
    place = {token: index for index, (token, _, _) in enumerate(ring)}
    found: dict[str, str] = {}
    seen: set[str] = set()
    finished_s = 0.0
    for item in read_transcripts(path):
        if item.request_id in seen:
            found["twice"] = item.request_id
        seen.add(item.request_id)
        if item.request_id not in expected or item.run != RUN:
            found["never sent"] = item.request_id
        elif item.prompt_sha256 != expected[item.request_id].prompt_sha256:
            found["another prompt"] = item.request_id
        if not item.complete or len(item.token_ids) != TOKENS:
            found["not complete"] = item.request_id
        elif not _as_sent(item, ring, place):
            found["not what the server sent, or in another order"] = item.request_id
        if item.first_token_s is None or not item.sent_s < item.first_token_s < item.finished_s:
            found["times out of order within it"] = item.request_id
        if item.finished_s < finished_s:
            found["written before one that ended earlier"] = item.request_id
        finished_s = item.finished_s
    lost = expected.keys() - seen
    return [f"{what}: {which}" for what, which in found.items()] + (
        [f"{len(lost)} lost: {min(lost)}"] if lost else []
    )


def _ring() -> list[tuple[int, tuple[int, ...], tuple[float | None, ...]]]:
    """Token, most probable tokens and their logprobs of the chunks that the server sends round and round."""
    answer = Answer((), 20)
    for body in chunks(Kind(20, True)):
        answer.add(body)
    return list(zip(answer.token_ids, answer.top_ids, answer.top_logprobs, strict=True))


def _as_sent(
    item: Transcript,
    ring: Sequence[tuple[int, tuple[int, ...], tuple[float | None, ...]]],
    place: dict[int, int],
) -> bool:
    """The first and the last chunk are each request's own; those between follow each other on the ring."""
    start = place.get(item.token_ids[1], -1)
    return all(
        (item.token_ids[at], item.top_ids[at], item.top_logprobs[at]) == ring[(start + at - 1) % len(ring)]
        and item.logprobs[at] == item.top_logprobs[at][0]
        for at in range(1, TOKENS - 1)
    )


def run(requests: int, in_flight: int, work: Path) -> tuple[Measured, list[str]]:
    """Sends the requests and checks what was written.

    Args:
        requests: A multiple of `in_flight`.
        in_flight: At once.
        work: Directory for the transcripts, about 600 bytes a token; they are removed.
    """
    work.mkdir(parents=True, exist_ok=True)
    path = work / "transcripts.jsonl"
    try:
        measured = measure(TOOLS[0], Level("volume", in_flight, requests, 0.001), work)
        return measured, problems(path, requests, in_flight)
    finally:
        path.unlink(missing_ok=True)


def main(arguments: Sequence[str]) -> int:
    """Prints what was reached; fails where memory or a transcript is not as it must be."""
    requests = int(arguments[0]) if arguments else REQUESTS
    measured, wrong = run(requests, min(requests, IN_FLIGHT), _WORK)
    print(
        f"{requests:,} requests of {TOKENS} tokens with top-20 logprobs, {min(requests, IN_FLIGHT)} at once: "
        f"{measured.tokens_per_s:,.0f} tokens/s, {measured.ended:.1f} CPU s per million tokens, peak memory "
        f"{measured.peak_bytes / 2**20:.0f} MiB (at most {MEMORY_BYTES >> 20})"
    )
    print(*(wrong or ["nothing lost, nothing changed, order and times kept"]), sep="\n")
    return int(bool(wrong) or measured.peak_bytes > MEMORY_BYTES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
