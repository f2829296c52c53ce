"""Serving and traffic together: what becomes of an arm whose server fails while it is driven."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from qualify.record import ArmRecord, ArmState
from qualify.scenario import Scenario
from qualify.serving import guard
from qualify.serving.launcher import Server
from qualify.serving.process import ProcessServer
from qualify.serving.session import Session, serve_async
from qualify.traffic.driver import drive_run
from qualify.traffic.prompts import read_vocabulary
from qualify.transcript import Arm, Decode, RunKey, Transcript, read_transcripts
from tests.fake_server.starting import NAME, fake_launcher

RUN = RunKey(Arm.CANDIDATE, Decode.FREE, 1)
SCENARIO = Scenario.model_validate(
    {
        "format": "qualify/scenario/1",
        "name": "mixed",
        "description": "for tests",
        "seed": 7,
        "deadline_s": 4.0,
        "phases": (
            {"name": "first", "context_tokens": (40, 30), "decode_tokens": 2},
            {"name": "second", "context_tokens": (5, 20, 10), "decode_tokens": 40},
            {"name": "third", "context_tokens": (5,), "decode_tokens": 2},
        ),
    }
)


async def serve_and_drive(directory: Path, misbehaviour: str) -> tuple[ArmRecord, list[Transcript]]:
    path = directory / "free.run1.jsonl"
    servers: list[ProcessServer] = []

    async def use(server: Server) -> str | None:
        assert isinstance(server, ProcessServer)
        servers.append(server)
        await asyncio.sleep(0.6)  # the worker process is found within half a second
        outcome = await drive_run(
            RUN,
            [SCENARIO],
            url=server.url,
            served_name=NAME,
            vocabulary=read_vocabulary(directory / "model"),
            path=path,
            forced=None,
            progress=lambda _: None,
        )
        return outcome.trouble

    record = await serve_async(
        Session(arm=Arm.CANDIDATE, fault=None, served_name=NAME, ready_within_s=20),
        fake_launcher(directory, misbehaviour),
        use,
        progress=lambda _: None,
    )
    assert guard.session_members(servers[0].pid) == []
    return record, list(read_transcripts(path))


async def test_a_good_server_serves(tmp_path: Path) -> None:
    record, transcripts = await serve_and_drive(tmp_path, "")
    assert record.state is ArmState.SERVED
    assert len(transcripts) == 6
    assert all(item.complete for item in transcripts)


@pytest.mark.parametrize(
    ("misbehaviour", "state", "detail", "failures"),
    [
        ("die-under-load", ArmState.DIED, "SIGABRT: Fatal Python error: Aborted", {"disconnected"}),
        ("exit-under-load", ArmState.KILLED, "exited with code 0", {"disconnected"}),
        ("engine-dies", ArmState.KILLED, "VLLM::EngineCore", {"cancelled"}),
        ("engine-aborts", ArmState.DIED, "vanished: Fatal Python error: Aborted", {"cancelled"}),
        ("told-to-stop", ArmState.KILLED, "received signal=SIGTERM", {"incomplete", "timeout"}),
        ("hang", ArmState.HUNG, "3 requests in flight, nothing heard for 2 s", {"timeout"}),
    ],
)
async def test_each_end_under_load_has_its_state(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    misbehaviour: str,
    state: ArmState,
    detail: str,
    failures: set[str],
) -> None:
    monkeypatch.setattr("qualify.serving.session._GONE_WITHIN_S", 1.0)
    started = time.monotonic()
    record, transcripts = await serve_and_drive(tmp_path, misbehaviour)
    assert record.state is state
    assert detail in record.detail
    assert record.log_tail
    assert time.monotonic() - started < 60
    assert [item.phase for item in transcripts[:2]] == ["first", "first"]
    assert {item.failure.kind for item in transcripts if item.failure} <= failures
    assert sum(1 for item in transcripts if item.failure) >= 3
