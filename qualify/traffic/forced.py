"""The tokens that forced runs are made to emit: what the baseline chose in its first free run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from qualify.errors import EvidenceError
from qualify.traffic.prompts import PlannedRequest
from qualify.transcript import read_transcripts

ForcedTokens = Mapping[str, tuple[int, ...]]


def forced_tokens(path: Path) -> ForcedTokens:
    """Reads the tokens of a free run.

    Args:
        path: Transcripts of the baseline's first free run.

    Returns:
        Request id to emitted token ids, of complete requests only.

    Raises:
        EvidenceError: The file is missing or damaged.
    """
    if not path.exists():
        raise EvidenceError(
            "the baseline's free run is missing, which gives the tokens to force",
            where=str(path),
            advice="Serve the baseline again.",
        )
    return {item.request_id: item.token_ids for item in read_transcripts(path) if item.complete}


def check_forced(requests: Iterable[PlannedRequest], forced: ForcedTokens) -> None:
    """Refuses a forced run for which tokens are missing.

    Args:
        requests: What is to be sent.
        forced: The tokens to force.

    Raises:
        EvidenceError: A request has no tokens to force, or not as many as it generates.
    """
    for request in requests:
        tokens: Sequence[int] = forced.get(request.request_id, ())
        if len(tokens) != request.max_tokens:
            raise EvidenceError(
                f"{len(tokens)} of {request.max_tokens} tokens to force are there",
                where=request.request_id,
                advice="The baseline's free run did not complete this request; see its transcripts.",
            )
