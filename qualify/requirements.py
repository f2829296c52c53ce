"""Requirements: what a scenario demands that its load reaches, held against measurement and not intention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

Count = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
Length = Annotated[int, Field(strict=True, ge=0, le=4_194_304)]
Lengths = tuple[Annotated[int, Field(strict=True, ge=1, le=4_194_304)], ...]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Flag = Annotated[bool, Field(strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What one scenario's load must reach in the candidate; the defaults ask for nothing.

    Attributes:
        rows: Decode steps with exactly so many rows must be seen, one for each number.
        padded_rows: A decode step must be seen whose rows were padded to a larger graph.
        straddled_tokens: For each number, a decode step must be seen in which one row's context is longer and
            another's is not.
        identical_prompts: So many requests with the same prompt must be alive in one decode step.
        in_flight: So many requests must be in flight at one time, by the client's clock.
        warmup_requests: So many requests that are not judged must have ended before the first judged one is
            sent.
        decoded_tokens: A judged request must have generated so many tokens.
        prefix_hits: The server's prefix cache must have been hit at all.
        prefix_hit_tokens: Fewest tokens that one request must have found in the prefix cache.
        prompt_tails: Prompt tokens left to compute after a prefix hit, one request for each number.
        preemptions: Fewest requests that the server preempted.
        kv_cache_share: Largest share of the KV cache in use must reach this, from 0 to 1.
        prefill_during_decode: A step must be seen that computes one request's prompt and decodes another.
        speculation: True: the server must speculate; False: it must not; None: either.
    """

    rows: Lengths = ()
    padded_rows: Flag = False
    straddled_tokens: Lengths = ()
    identical_prompts: Count = 0
    in_flight: Count = 0
    warmup_requests: Count = 0
    decoded_tokens: Length = 0
    prefix_hits: Flag = False
    prefix_hit_tokens: Length = 0
    prompt_tails: Lengths = ()
    preemptions: Count = 0
    kv_cache_share: Share = 0.0
    prefill_during_decode: Flag = False
    speculation: Flag | None = None


# for pydantic, which takes no mapping for a strict dataclass: its fields are strict instead
Requirements.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]

NOTHING = Requirements()
