from __future__ import annotations

from pathlib import Path

import pytest

from qualify.scenario import Scenario
from qualify.serving.steps import StepLog
from qualify.traffic import prefixes
from qualify.traffic.driver import DriveEnd, RunOutcome, drive_run
from qualify.traffic.forced import forced_tokens
from qualify.traffic.prompts import read_vocabulary
from qualify.transcript import Arm, Decode, RunKey
from tests.fake_server.starting import NAME, fake_server, write_model

FREE = RunKey(Arm.CANDIDATE, Decode.FREE, 1)
FORCED = RunKey(Arm.CANDIDATE, Decode.FORCED, 1)
DOCUMENT = {"name": "document", "tokens": 320}


def asked(*groups: dict[str, object], **changes: object) -> Scenario:
    judged = {"name": "judge", "decode_tokens": 3, "arrival": {"kind": "held"}, "requests": groups}
    return Scenario.model_validate(
        {
            "format": "qualify/scenario/1",
            "name": "hits",
            "description": "for tests",
            "seed": 7,
            "deadline_s": 10.0,
            "phases": (
                {
                    "name": "fill",
                    "judged": False,
                    "decode_tokens": 2,
                    "requests": [{"tail_tokens": 8, "prefix": DOCUMENT}],
                },
                judged,
            ),
        }
        | changes
    )


async def driven(directory: Path, scenario: Scenario, misbehaviour: str = "") -> dict[RunKey, RunOutcome]:
    """Drives the free and the forced run on one caching server, which writes steps.jsonl."""
    vocabulary = read_vocabulary(write_model(directory / "model"))
    outcomes = {}
    environment = {"FAKE_PREFIX_CACHE": "1", "DS4_STEP_LOG": str(directory / "steps.jsonl")}
    async with fake_server(directory, misbehaviour, **environment) as server:
        for run in (FREE, FORCED):
            outcomes[run] = await drive_run(
                run,
                [scenario],
                url=server.url,
                served_name=NAME,
                vocabulary=vocabulary,
                path=directory / f"{run}.jsonl",
                forced=forced_tokens(directory / f"{FREE}.jsonl") if run is FORCED else None,
                progress=lambda _: None,
            )
    return outcomes


def found(directory: Path, run: RunKey) -> dict[str, int]:
    """Prompt tokens that each judged request found in the cache."""
    first: dict[str, int] = {}
    for step in StepLog(directory / "steps.jsonl"):
        for row in step.rows:
            if row.server_request_id.startswith(f"{run}-hits-judge"):
                first.setdefault(row.server_request_id.removeprefix(f"{run}-"), row.computed_tokens)
    return first


async def test_a_run_finds_no_prompt_of_the_run_before_it(tmp_path: Path) -> None:
    scenario = asked({"context_tokens": [90, 400]}, {"tail_tokens": [40], "prefix": DOCUMENT})
    outcomes = await driven(tmp_path, scenario)
    assert {outcome.prefixes_kept for outcome in outcomes.values()} == {""}
    # the document was filled in by the run itself: that is what the scenario is about
    expected = {"hits-judge-0": 0, "hits-judge-1": 0, "hits-judge-2": 320}
    assert found(tmp_path, FREE) == expected
    assert found(tmp_path, FORCED) == expected


@pytest.mark.parametrize(("misbehaviour", "why"), [("no-reset", "404"), ("keeps-blocks", "still in use")])
async def test_a_cache_that_cannot_be_emptied_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, misbehaviour: str, why: str
) -> None:
    monkeypatch.setattr(prefixes, "_EMPTY_WITHIN_S", 0.3)
    outcomes = await driven(tmp_path, asked({"context_tokens": [400]}), misbehaviour)
    assert all(outcome.end is DriveEnd.DRIVEN for outcome in outcomes.values())
    assert all(why in outcome.prefixes_kept for outcome in outcomes.values())
    assert found(tmp_path, FORCED) == {"hits-judge-0": 384}
