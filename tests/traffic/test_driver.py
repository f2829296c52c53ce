from __future__ import annotations

import asyncio
import json
import os
import resource
from collections.abc import Sequence
from pathlib import Path

import httpx2
import pytest

from qualify.errors import EvidenceError, MachineryError, UsageError
from qualify.scenario import Scenario
from qualify.serving.process import free_port
from qualify.serving.steps import StepLog
from qualify.traffic import driver, schedule
from qualify.traffic.driver import DriveEnd, DriveProgress, RunOutcome, drive_run, silence_limit_s
from qualify.traffic.forced import ForcedTokens, forced_tokens
from qualify.traffic.prompts import expected_requests, read_vocabulary
from qualify.transcript import Arm, Decode, RunKey, Transcript, read_transcripts
from tests.fake_server.starting import NAME, fake_server, write_model

FREE = RunKey(Arm.BASELINE, Decode.FREE, 1)
FORCED = RunKey(Arm.CANDIDATE, Decode.FORCED, 1)


def scenario(name: str = "mixed", **changes: object) -> Scenario:
    fields: dict[str, object] = {
        "format": "qualify/scenario/1",
        "name": name,
        "description": "for tests",
        "seed": 7,
        "deadline_s": 10.0,
        "phases": (
            {"name": "pollute", "judged": False, "context_tokens": (40, 30), "decode_tokens": 2},
            {"name": "ask", "context_tokens": (5, 20, 10), "decode_tokens": 8},
        ),
    }
    return Scenario.model_validate(fields | changes)


def one_phase(arrival: dict[str, object], **changes: object) -> Scenario:
    phase = {"name": "ask", "context_tokens": (60, 50, 40, 30), "decode_tokens": 6, "arrival": arrival}
    return scenario(phases=(phase,), **changes)


async def drive(
    url: str,
    directory: Path,
    run: RunKey = FREE,
    scenarios: Sequence[Scenario] = (),
    forced: ForcedTokens | None = None,
    seen: list[DriveProgress] | None = None,
) -> tuple[RunOutcome, list[Transcript]]:
    path = directory / f"{run}.jsonl"
    outcome = await drive_run(
        run,
        scenarios or [scenario()],
        url=url,
        served_name=NAME,
        vocabulary=read_vocabulary(write_model(directory / "model")),
        path=path,
        forced=forced,
        progress=(seen if seen is not None else []).append,
    )
    return outcome, list(read_transcripts(path))


async def test_every_expected_request_is_answered_once(tmp_path: Path) -> None:
    async with fake_server(tmp_path) as server:
        outcome, transcripts = await drive(server.url, tmp_path)
    assert outcome == RunOutcome(
        run=FREE, end=DriveEnd.DRIVEN, trouble=None, expected=5, finished=5, failed=0
    )
    expected = expected_requests(scenario(), read_vocabulary(tmp_path / "model"))
    assert {item.request_id: item.prompt_sha256 for item in transcripts} == {
        item.request_id: item.prompt_sha256 for item in expected
    }
    assert all(item.complete and len(item.token_ids) == item.max_tokens for item in transcripts)
    assert all(
        item.first_token_s is not None and item.sent_s < item.first_token_s <= item.finished_s
        for item in transcripts
    )
    assert len({item.server_request_id for item in transcripts}) == 5


async def test_a_phase_starts_when_the_one_before_has_ended(tmp_path: Path) -> None:
    async with fake_server(tmp_path) as server:
        _, transcripts = await drive(server.url, tmp_path)
    polluting = [item for item in transcripts if not item.judged]
    judged = [item for item in transcripts if item.judged]
    assert max(item.finished_s for item in polluting) <= min(item.sent_s for item in judged)


async def test_forced_run_repeats_the_free_one(tmp_path: Path) -> None:
    both, free_only = scenario("both"), scenario("free-only", decode=("free",))
    async with fake_server(tmp_path) as server:
        _, free = await drive(server.url, tmp_path, FREE, [both, free_only])
        forced = forced_tokens(tmp_path / f"{FREE}.jsonl")
        outcome, again = await drive(server.url, tmp_path, FORCED, [both, free_only], forced)
    assert outcome.end is DriveEnd.DRIVEN
    assert outcome.failed == 0
    by_id = {item.request_id: item for item in free}
    assert len(again) == 5
    assert all(item.token_ids == by_id[item.request_id].token_ids for item in again)
    assert all(item.top_logprobs == by_id[item.request_id].top_logprobs for item in again)
    assert all(item.forced_sha256 for item in again)
    assert not any(item.forced_sha256 for item in free)


async def test_forced_run_without_all_tokens_sends_nothing(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="0 of 2 tokens to force") as caught:
        await drive(f"http://127.0.0.1:{free_port()}", tmp_path, FORCED, forced={})
    assert caught.value.where == "mixed/pollute/0"
    assert not (tmp_path / f"{FORCED}.jsonl").exists()


def test_forced_tokens_of_a_missing_run_are_missing_evidence(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="free run is missing"):
        forced_tokens(tmp_path / "nothing.jsonl")


async def test_incomplete_free_answers_give_no_tokens_to_force(tmp_path: Path) -> None:
    async with fake_server(tmp_path, "early-stop") as server:
        outcome, transcripts = await drive(server.url, tmp_path)
    assert outcome.end is DriveEnd.DRIVEN
    assert outcome.failed == 3
    assert [item.failure.kind for item in transcripts if item.failure] == ["incomplete"] * 3
    assert sorted(forced_tokens(tmp_path / f"{FREE}.jsonl")) == ["mixed/pollute/0", "mixed/pollute/1"]


async def test_lines_are_written_as_requests_end(tmp_path: Path) -> None:
    path = tmp_path / f"{FREE}.jsonl"
    async with fake_server(tmp_path, "hang", FAKE_AFTER_TOKENS="4") as server:
        seen: list[DriveProgress] = []
        task = asyncio.create_task(drive(server.url, tmp_path, seen=seen))
        while not seen or seen[-1].in_flight < 3:
            await asyncio.sleep(0.01)
        assert path.read_bytes().count(b"\n") == 2
        assert not task.done()
        task.cancel("interrupted by the user")
        with pytest.raises(asyncio.CancelledError):
            await task
    transcripts = list(read_transcripts(path))
    assert [item.failure.kind for item in transcripts if item.failure] == ["cancelled"] * 3
    assert {item.failure.message for item in transcripts if item.failure} == {"interrupted by the user"}


async def test_silent_server_counts_as_hung(tmp_path: Path) -> None:
    async with fake_server(tmp_path, "hang", FAKE_AFTER_TOKENS="8") as server:
        outcome, transcripts = await drive(server.url, tmp_path, scenarios=[scenario(deadline_s=2.0)])
    assert outcome.end is DriveEnd.HUNG
    assert outcome.trouble
    assert "3 requests in flight" in outcome.trouble
    assert [item.failure.kind for item in transcripts if item.failure] == ["timeout"] * 3
    assert any(item.token_ids for item in transcripts if item.failure)


def test_silence_limit_is_shorter_where_silence_can_be_heard() -> None:
    assert silence_limit_s(scenario(deadline_s=100.0)) == 50
    assert silence_limit_s(scenario(deadline_s=100.0, stream=False)) == 100


async def test_slow_requests_alone_are_no_hang(tmp_path: Path) -> None:
    # each request takes longer than the silence allowed, while others are heard
    arrival = {"kind": "offsets", "offsets_s": (0.0, 0.4, 0.8, 1.2)}
    async with fake_server(tmp_path, FAKE_STEP_S="0.2") as server:
        outcome, _ = await drive(server.url, tmp_path, scenarios=[one_phase(arrival, deadline_s=2.0)])
    assert outcome.end is DriveEnd.DRIVEN
    assert outcome.failed == 0


async def test_a_server_that_is_held_by_us_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # all are sent in 2.4 s, and nothing can come before; half the deadline is 2 s
    monkeypatch.setattr(schedule, "HELD_EVERY_S", 0.4)
    phase = {"name": "ask", "context_tokens": (9,) * 6, "decode_tokens": 2, "arrival": {"kind": "held"}}
    async with fake_server(tmp_path) as server:
        outcome, _ = await drive(server.url, tmp_path, scenarios=[scenario(phases=(phase,), deadline_s=4.0)])
    assert (outcome.end, outcome.failed) == (DriveEnd.DRIVEN, 0)


async def test_a_held_server_that_accepts_nothing_hangs(tmp_path: Path) -> None:
    async def swallow(incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        head = await incoming.readuntil(b"\r\n\r\n")
        if b"/v1/" not in head:
            outgoing.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
            outgoing.close()

    async with await asyncio.start_server(swallow, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        outcome, _ = await drive(url, tmp_path, scenarios=[one_phase({"kind": "held"}, deadline_s=2.0)])
    assert outcome.end is DriveEnd.HUNG


async def test_more_requests_than_files_were_allowed(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    arrival = {"name": "ask", "context_tokens": (9,) * 60, "decode_tokens": 4}
    async with fake_server(tmp_path) as server:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
        try:
            outcome, _ = await drive(server.url, tmp_path, scenarios=[scenario(phases=(arrival,))])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (outcome.end, outcome.failed) == (DriveEnd.DRIVEN, 0)


async def test_no_socket_to_be_had_is_the_machines_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(driver, "allow_many_connections", lambda: None)
    arrival = {"name": "ask", "context_tokens": (9,) * 60, "decode_tokens": 4}
    async with fake_server(tmp_path) as server:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
        try:
            with pytest.raises(MachineryError, match="Too many open files"):
                await drive(server.url, tmp_path, scenarios=[scenario(phases=(arrival,))])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    written = list(read_transcripts(tmp_path / f"{FREE}.jsonl"))
    assert written
    assert {item.failure.kind for item in written if item.failure} == {"cancelled"}
    assert not any(item.complete for item in written)


@pytest.mark.parametrize("misbehaviour", ["die-under-load", "exit-under-load"])
async def test_server_that_dies_stops_the_run(tmp_path: Path, misbehaviour: str) -> None:
    scenarios = [scenario("first"), scenario("second")]
    async with fake_server(tmp_path, misbehaviour, FAKE_AFTER_TOKENS="6") as server:
        outcome, transcripts = await drive(server.url, tmp_path, scenarios=scenarios)
    assert outcome.end is DriveEnd.LOST
    assert outcome.trouble
    assert (outcome.expected, outcome.finished, outcome.failed) == (10, 5, 3)
    assert {item.failure.kind for item in transcripts if item.failure} == {"disconnected"}


async def test_nobody_listening_stops_the_run_after_one_phase(tmp_path: Path) -> None:
    outcome, transcripts = await drive(f"http://127.0.0.1:{free_port()}", tmp_path)
    assert outcome.end is DriveEnd.LOST
    assert [item.failure.kind for item in transcripts if item.failure] == ["refused"] * 2


async def test_failures_of_a_living_server_do_not_stop_the_run(tmp_path: Path) -> None:
    async with fake_server(tmp_path, "http-500") as server:
        outcome, transcripts = await drive(server.url, tmp_path)
    assert outcome.end is DriveEnd.DRIVEN
    assert (outcome.finished, outcome.failed) == (5, 5)
    assert {item.failure.kind for item in transcripts if item.failure} == {"http"}


async def test_offsets_are_kept(tmp_path: Path) -> None:
    arrival = {"kind": "offsets", "offsets_s": (0.3, 0.0, 0.15, 0.45)}
    async with fake_server(tmp_path) as server:
        _, transcripts = await drive(server.url, tmp_path, scenarios=[one_phase(arrival)])
    sent = {item.index: item.sent_s for item in transcripts}
    after = [sent[index] - sent[1] for index in range(4)]
    assert after == pytest.approx([0.3, 0.0, 0.15, 0.45], abs=0.1)


async def test_held_requests_start_together_in_sending_order(tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"
    async with fake_server(tmp_path, DS4_STEP_LOG=str(log)) as server:
        outcome, _ = await drive(server.url, tmp_path, scenarios=[one_phase({"kind": "held"})])
    assert outcome.failed == 0
    first = next(iter(StepLog(log)))
    assert [row.server_request_id for row in first.rows] == [
        f"baseline.free.run1-mixed-ask-{index}" for index in range(4)
    ]
    assert [row.row for row in first.rows] == [0, 1, 2, 3]


async def test_held_needs_a_server_that_can_be_paused(tmp_path: Path) -> None:
    async with fake_server(tmp_path, "no-pause") as server:
        with pytest.raises(UsageError, match="/pause was answered with 404"):
            await drive(server.url, tmp_path, scenarios=[one_phase({"kind": "held"})])


async def test_server_that_cannot_be_resumed_is_a_lost_one(tmp_path: Path) -> None:
    async with fake_server(tmp_path, "bad-resume") as server:
        outcome, transcripts = await drive(server.url, tmp_path, scenarios=[one_phase({"kind": "held"})])
    assert outcome.end is DriveEnd.LOST
    assert "/resume was answered with 500" in str(outcome.trouble)
    assert [item.failure.kind for item in transcripts if item.failure] == ["cancelled"] * 4


async def test_cancelled_while_held_resumes_the_server(tmp_path: Path) -> None:
    path = tmp_path / f"{FREE}.jsonl"
    held = one_phase({"kind": "held"})
    async with fake_server(tmp_path) as server:
        task = asyncio.create_task(drive(server.url, tmp_path, scenarios=[held]))
        async with httpx2.AsyncClient(base_url=server.url) as client:
            while "num_requests_waiting 0" in (await client.get("/metrics")).text:
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        outcome, _ = await drive(server.url, tmp_path / "again")
    cancelled = list(read_transcripts(path))
    assert cancelled
    assert {item.failure.kind for item in cancelled if item.failure} == {"cancelled"}
    assert outcome.failed == 0


async def test_held_on_a_dead_server_is_a_lost_one(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    outcome, _ = await drive(url, tmp_path, scenarios=[one_phase({"kind": "held"})])
    assert outcome.end is DriveEnd.LOST
    assert outcome.finished == 0


async def test_progress_counts_what_happens(tmp_path: Path) -> None:
    seen: list[DriveProgress] = []
    async with fake_server(tmp_path, FAKE_STEP_S="0.1") as server:
        await drive(server.url, tmp_path, seen=seen)
    assert {item.phase for item in seen} == {"pollute", "ask"}
    assert all(item.total == 5 and item.scenario == "mixed" and item.run == FREE for item in seen)
    assert max(item.in_flight for item in seen) == 3
    assert seen[-1].tokens > 4
    assert seen[-1].tokens_per_s == pytest.approx(seen[-1].tokens / seen[-1].elapsed_s)
    assert [item.done for item in seen] == sorted(item.done for item in seen)


async def test_transcripts_are_plain_json_lines(tmp_path: Path) -> None:
    async with fake_server(tmp_path) as server:
        await drive(server.url, tmp_path)
    for line in (tmp_path / f"{FREE}.jsonl").read_text().splitlines():
        assert json.loads(line)["run"] == {"arm": "baseline", "decode": "free", "number": 1}
