"""Each arrival and axis of the scenario language on the fake server: what was asked for happened.

Order, overlap and batches are read from the fake engine's own step log, times from the transcripts.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from qualify.scenario import Scenario
from qualify.scenario.reading import ScenarioFile, read_scenario
from qualify.serving.steps import StepLog
from qualify.steps import Step
from qualify.traffic.driver import DriveEnd, drive_run
from qualify.traffic.prompts import plan_rounds, read_vocabulary
from qualify.transcript import Arm, Decode, RunKey, Transcript, read_transcripts
from qualify.yamlsource import Source
from tests.fake_server.starting import NAME, fake_server, write_model

RUN = RunKey(Arm.BASELINE, Decode.FREE, 1)


def scenario(*phases: dict[str, object], **changes: object) -> Scenario:
    fields: dict[str, object] = {
        "format": "qualify/scenario/1",
        "name": "load",
        "description": "for tests",
        "seed": 7,
        "deadline_s": 20.0,
        "phases": tuple({"name": "ask", "decode_tokens": 6} | phase for phase in phases),
    }
    return Scenario.model_validate(fields | changes)


async def driven(
    directory: Path, asked: Scenario, **environment: str
) -> tuple[dict[str, Transcript], list[Step]]:
    """Transcripts by phase/index, and the engine's steps."""
    log = directory / "steps.jsonl"
    async with fake_server(directory, DS4_STEP_LOG=str(log), **environment) as server:
        outcome = await drive_run(
            RUN,
            [asked],
            url=server.url,
            served_name=NAME,
            vocabulary=read_vocabulary(write_model(directory / "model")),
            path=directory / "run.jsonl",
            forced=None,
            progress=lambda _: None,
        )
    assert outcome.end is DriveEnd.DRIVEN
    assert outcome.failed == 0
    assert outcome.finished == outcome.expected
    transcripts = {f"{item.phase}/{item.index}": item for item in read_transcripts(directory / "run.jsonl")}
    return transcripts, list(StepLog(log))


def admitted(steps: list[Step]) -> list[int]:
    """Indices of the requests in the order in which the engine took them in."""
    order = [row.server_request_id for step in steps for row in step.rows]
    return [int(name.rsplit("-", 1)[1]) for name in dict.fromkeys(order)]


def most_in_flight(transcripts: dict[str, Transcript]) -> int:
    items = transcripts.values()
    return max(sum(other.sent_s <= item.sent_s < other.finished_s for other in items) for item in items)


async def test_blocker_keeps_the_others_in_sending_order(tmp_path: Path) -> None:
    contexts = (900, 60, 50, 40, 30)
    asked = scenario({"context_tokens": contexts, "arrival": {"kind": "blocker"}})
    # one step is as long as a long prompt would take
    transcripts, steps = await driven(tmp_path, asked, FAKE_STEP_S="1.0")
    assert admitted(steps) == [0, 1, 2, 3, 4]
    sent = [transcripts[f"ask/{index}"].sent_s for index in range(5)]
    # each only once the one before was in the server's queue, which takes 50 ms at least
    assert all(after - before >= 0.05 for before, after in itertools.pairwise(sent))
    blocker = transcripts["ask/0"]
    assert blocker.first_token_s is not None
    assert all(transcripts[f"ask/{index}"].sent_s < blocker.first_token_s for index in range(1, 5))
    # the engine may have begun with the blocker alone; all that came meanwhile joins it in the next step
    assert len(steps[1].rows) == 5


async def test_poisson_times_are_kept_and_the_same_in_every_run(tmp_path: Path) -> None:
    asked = scenario({"context_tokens": (30,) * 12, "arrival": {"kind": "poisson", "per_s": 20, "seed": 3}})
    transcripts, _ = await driven(tmp_path, asked)
    due = asked.phases[0].arrival.offsets(12)
    sent = [transcripts[f"ask/{index}"].sent_s for index in range(12)]
    assert [time - sent[0] for time in sent] == pytest.approx([time - due[0] for time in due], abs=0.1)
    assert due == scenario(
        {"context_tokens": (30,) * 12, "arrival": {"kind": "poisson", "per_s": 20, "seed": 3}}
    ).phases[0].arrival.offsets(12)


def test_poisson_gaps_are_exponential() -> None:
    arrival = {"kind": "poisson", "per_s": 50, "seed": 1}
    due = scenario({"context_tokens": (30,) * 4000, "arrival": arrival}).phases[0].arrival.offsets(4000)
    gaps = [after - before for before, after in itertools.pairwise(due)]
    mean = sum(gaps) / len(gaps)
    # standard error of the mean is 1/(50 sqrt(4000)) = 0.0003; half of all gaps are below ln 2 times the mean
    assert mean == pytest.approx(0.02, abs=0.002)
    assert sum(gap < 0.02 * 0.6931 for gap in gaps) / len(gaps) == pytest.approx(0.5, abs=0.05)


async def test_closed_loop_keeps_its_number_in_flight(tmp_path: Path) -> None:
    asked = scenario({"context_tokens": (30,) * 14, "arrival": {"kind": "closed", "concurrency": 4}})
    transcripts, steps = await driven(tmp_path, asked, FAKE_STEP_S="0.02")
    assert most_in_flight(transcripts) == 4
    assert max(len(step.rows) for step in steps) == 4
    assert admitted(steps) == list(range(14))


async def test_trace_is_replayed(tmp_path: Path) -> None:
    lines = [(0.0, 50, 3), (0.2, 20, 7), (0.5, 80, 2)]
    (tmp_path / "t.jsonl").write_text(
        "".join(
            json.dumps({"offset_s": at, "context_tokens": context, "decode_tokens": decode}) + "\n"
            for at, context, decode in lines
        )
    )
    (tmp_path / "load.yaml").write_text(
        "format: qualify/scenario/1\nname: load\ndescription: d\nseed: 1\n"
        "phases: [{name: ask, arrival: {kind: trace, file: t.jsonl}}]\n"
    )
    file = read_scenario(Source(tmp_path / "load.yaml"), None)
    assert isinstance(file, ScenarioFile)
    transcripts, _ = await driven(tmp_path, file.scenario)
    items = [transcripts[f"ask/{index}"] for index in range(3)]
    assert [(item.context_tokens, len(item.token_ids)) for item in items] == [(50, 3), (20, 7), (80, 2)]
    for item, (offset_s, _, _) in zip(items, lines, strict=True):
        # a busy machine sends later, never earlier
        assert offset_s - 0.05 < item.sent_s - items[0].sent_s < offset_s + 5


async def test_held_requests_start_together_and_a_late_one_joins(tmp_path: Path) -> None:
    groups = (
        {"context_tokens": (40, 30, 20), "decode_tokens": 30},
        {"context_tokens": 700, "decode_tokens": 2, "after": {"request": 2, "tokens": 5}},
    )
    asked = scenario({"requests": groups, "arrival": {"kind": "held"}})
    _, steps = await driven(tmp_path, asked, FAKE_STEP_S="0.02")
    assert [row.scheduled_tokens for row in steps[0].rows] == [40, 30, 20]
    (mixed,) = [step for step in steps if step.kind == "mixed"]
    assert [row.scheduled_tokens for row in mixed.rows] == [1, 1, 1, 700]
    assert mixed.rows[2].computed_tokens >= 20 + 5 - 1


async def test_prefill_arrives_after_the_asked_token(tmp_path: Path) -> None:
    groups = (
        {"context_tokens": 40, "decode_tokens": 30},
        {"context_tokens": 700, "decode_tokens": 2, "after": {"request": 0, "tokens": 9}},
        {"context_tokens": 20, "decode_tokens": 2, "after": {"seconds": 0.1}},
    )
    transcripts, steps = await driven(tmp_path, scenario({"requests": groups}), FAKE_STEP_S="0.02")
    mixed = [
        step
        for step in steps
        if step.kind == "mixed" and any(row.scheduled_tokens == 700 for row in step.rows)
    ]
    assert len(mixed) == 1
    # the decoding request has its prompt and at least nine tokens, the last of which is computed in this step
    (decoding,) = [row for row in mixed[0].rows if row.server_request_id.endswith("ask-0")]
    assert decoding.computed_tokens >= 40 + 9 - 1
    assert decoding.scheduled_tokens == 1
    assert transcripts["ask/2"].sent_s - transcripts["ask/0"].sent_s == pytest.approx(0.1, abs=0.08)


async def test_request_that_waits_for_one_that_fails_is_still_sent(tmp_path: Path) -> None:
    groups = (
        {"context_tokens": 40, "decode_tokens": 30},
        {"context_tokens": 50, "decode_tokens": 2, "after": {"request": 0, "tokens": 20}},
    )
    # a request that nobody releases would wait for ever
    async with fake_server(tmp_path, "early-stop") as server, asyncio.timeout(30):
        outcome = await drive_run(
            RUN,
            [scenario({"requests": groups})],
            url=server.url,
            served_name=NAME,
            vocabulary=read_vocabulary(write_model(tmp_path / "model")),
            path=tmp_path / "run.jsonl",
            forced=None,
            progress=lambda _: None,
        )
    assert (outcome.finished, outcome.failed) == (2, 1)


async def test_every_batch_size_is_passed_through(tmp_path: Path) -> None:
    """Staggered ends: five requests end one after another."""
    phase = {"context_tokens": (30,) * 5, "decode_tokens": (4, 8, 12, 16, 20), "arrival": {"kind": "held"}}
    _, steps = await driven(tmp_path, scenario(phase, requires={"rows": (3, 5)}))
    rows = [len(step.rows) for step in steps if step.kind == "decode"]
    assert Counter(rows) == {5: 3, 4: 4, 3: 4, 2: 4, 1: 4}
    assert rows == sorted(rows, reverse=True)


@pytest.mark.parametrize("victim", [0, 2, 4])
async def test_identical_prompts_and_one_victim_in_its_row(tmp_path: Path, victim: int) -> None:
    same = {"context_tokens": 60, "prompt": "same"}
    groups = [dict(same, count=victim), {"context_tokens": 90}, dict(same, count=4 - victim)]
    groups = [group for group in groups if group.get("count", 1)]
    asked = scenario(
        {"requests": tuple(groups), "arrival": {"kind": "held"}}, requires={"identical_prompts": 2}
    )
    transcripts, steps = await driven(tmp_path, asked)
    digests = [transcripts[f"ask/{index}"].prompt_sha256 for index in range(5)]
    assert len(set(digests)) == 2
    assert digests.count(digests[victim]) == 1
    answers = {transcripts[f"ask/{index}"].token_ids for index in range(5) if index != victim}
    assert len(answers) == 1
    decode = next(step for step in steps if step.kind == "decode")
    assert [row.row for row in decode.rows if row.server_request_id.endswith(f"-{victim}")] == [victim]


async def test_requests_of_a_prefix_share_exactly_it(tmp_path: Path) -> None:
    group = {"prefix": {"name": "long", "tokens": 256}, "tail_tokens": (2, 3, 4)}
    asked = scenario(
        {"name": "fill", "judged": False, "requests": ({"prefix": group["prefix"], "tail_tokens": 9},)},
        {"name": "hit", "requests": (group,)},
        requires={"prefix_hits": True, "prefix_hit_tokens": 256, "prompt_tails": (2, 3, 4)},
    )
    vocabulary = read_vocabulary(write_model(tmp_path / "model"))
    prompts = [request.prompt for round_ in plan_rounds(asked, vocabulary) for request in round_.requests]
    assert [len(prompt) for prompt in prompts] == [265, 258, 259, 260]
    assert len({prompt[:256] for prompt in prompts}) == 1
    assert len({prompt[256:258] for prompt in prompts}) == 4
    transcripts, _ = await driven(tmp_path, asked)
    assert transcripts["hit/2"].context_tokens == 260


@pytest.mark.parametrize("order", ["rising", "falling"])
async def test_lengths_arrive_in_the_asked_order(tmp_path: Path, order: str) -> None:
    spread = {"count": 5, "shortest": 20, "longest": 500, "order": order}
    asked = scenario({"context_tokens": spread, "arrival": {"kind": "held"}})
    transcripts, steps = await driven(tmp_path, asked)
    lengths = [row.scheduled_tokens for row in steps[0].rows]
    assert lengths == [20, 140, 260, 380, 500][:: 1 if order == "rising" else -1]
    assert [transcripts[f"ask/{index}"].context_tokens for index in range(5)] == lengths


async def test_pollution_and_warm_up_end_before_what_is_judged(tmp_path: Path) -> None:
    warm = {
        "name": "warm-up",
        "judged": False,
        "context_tokens": {"count": 256, "shortest": 5, "longest": 60},
        "decode_tokens": 2,
        "arrival": {"kind": "closed", "concurrency": 32},
    }
    asked = scenario(warm, {"context_tokens": (30, 20)}, requires={"warmup_requests": 256})
    transcripts, _ = await driven(tmp_path, asked)
    before = [item for item in transcripts.values() if not item.judged]
    judged = [item for item in transcripts.values() if item.judged]
    assert (len(before), len(judged)) == (256, 2)
    assert max(item.finished_s for item in before) <= min(item.sent_s for item in judged)


async def test_long_decode_comes_whole(tmp_path: Path) -> None:
    asked = scenario({"context_tokens": (20,), "decode_tokens": 4096}, requires={"decoded_tokens": 4096})
    transcripts, _ = await driven(tmp_path, asked, FAKE_STEP_S="0")
    assert len(transcripts["ask/0"].token_ids) == 4096
