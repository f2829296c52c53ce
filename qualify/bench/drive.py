"""Our client alone, in a process of its own: ``python -m qualify.bench.drive``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from qualify.bench.stand_in import VOCABULARY
from qualify.scenario import Scenario
from qualify.traffic.driver import DriveEnd, drive_run
from qualify.traffic.prompts import Vocabulary
from qualify.transcript import Arm, Decode, RunKey

RUN = RunKey(Arm.BASELINE, Decode.FREE, 1)
CONTEXT, TOKENS = 32, 256
"""Tokens of each prompt and of each answer."""


def scenario(requests: int, in_flight: int) -> Scenario:
    """So many requests, so many of them at once, with the 20 most probable tokens at each position.

    Args:
        requests: A multiple of `in_flight`.
        in_flight: At once; the next ones are sent when these have ended.
    """
    return Scenario.model_validate(
        {
            "format": "qualify/scenario/1",
            "name": "bench",
            "description": "For measuring the client.",
            "seed": 1,
            "decode": ["free"],
            "deadline_s": 3600.0,
            "phases": [
                {
                    "name": "load",
                    "context_tokens": [CONTEXT] * in_flight,
                    "decode_tokens": TOKENS,
                    "repeat": requests // in_flight,
                }
            ],
        }
    )


def main() -> int:
    """Sends the requests and writes their transcripts; fails where one of them did."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--in-flight", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    outcome = asyncio.run(
        drive_run(
            RUN,
            [scenario(options.requests, options.in_flight)],
            url=options.url,
            served_name="bench",
            vocabulary=Vocabulary(VOCABULARY, ()),
            path=options.out,
            forced=None,
            progress=lambda _: None,
        )
    )
    print(outcome)
    return int(outcome.end is not DriveEnd.DRIVEN or outcome.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
