"""Several servers side by side: they start together, are driven one after another, and all end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx2
import pytest

from qualify.errors import EvidenceError
from qualify.record import ArmRecord, ArmState
from qualify.serving import guard
from qualify.serving.launcher import Server
from qualify.serving.process import ProcessServer
from qualify.serving.session import Session
from qualify.serving.together import ArmServer, Together, serve_together_async
from qualify.transcript import Arm
from tests.fake_server.starting import NAME, fake_launcher

ARMS = tuple(Arm)


@dataclass
class Seen:
    """What the arms' uses saw."""

    order: list[str] = field(default_factory=list)
    servers: dict[Arm, ProcessServer] = field(default_factory=dict)
    beside: dict[Arm, set[Arm]] = field(default_factory=dict)
    told: list[ArmRecord] = field(default_factory=list)


def servers(
    directory: Path, seen: Seen, use_s: float = 0.3, **environments: dict[str, str]
) -> list[ArmServer]:
    """The three arms; `environments` are of single arms."""

    def arm_server(arm: Arm) -> ArmServer:
        async def prepare(server: Server) -> None:
            assert isinstance(server, ProcessServer)
            seen.order.append(f"{arm} ready")
            seen.servers[arm] = server

        async def use(server: Server) -> None:
            seen.order.append(f"{arm} driven")
            seen.beside[arm] = {other for other in seen.servers if await _answers(seen.servers[other])}
            await asyncio.sleep(use_s)
            seen.order.append(f"{arm} done")

        return ArmServer(
            session=Session(arm=arm, fault=None, served_name=NAME, ready_within_s=20),
            launcher=fake_launcher(directory / arm, **environments.get(arm, {})),
            prepare=prepare,
            use=use,
            directory=directory,
            progress=lambda _: None,
        )

    return [arm_server(arm) for arm in ARMS]


async def _answers(server: ProcessServer) -> bool:
    try:
        async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as client:
            return (await client.get("/health")).status_code == 200
    except httpx2.TransportError:
        return False


async def together(arms: Sequence[ArmServer], seen: Seen) -> Together:
    try:
        return await serve_together_async(arms, seen.told.append)
    finally:
        assert not [pid for server in seen.servers.values() for pid in guard.session_members(server.pid)]


async def test_they_start_together_and_are_driven_in_order(tmp_path: Path) -> None:
    seen = Seen()
    # the last is ready last: nothing is driven while another still loads
    outcome = await together(servers(tmp_path, seen, control={"FAKE_LOAD_S": "1.5"}), seen)
    assert [record.state for record in outcome.records] == [ArmState.SERVED] * 3
    assert outcome.repeat is None
    assert [record.arm for record in seen.told] == list(ARMS)
    assert set(seen.order[:3]) == {f"{arm} ready" for arm in ARMS}
    assert seen.order[3:] == [f"{arm} {what}" for arm in ARMS for what in ("driven", "done")]
    # each was stopped before the next was driven
    assert seen.beside == {
        Arm.BASELINE: set(ARMS),
        Arm.CANDIDATE: {Arm.CANDIDATE, Arm.CONTROL},
        Arm.CONTROL: {Arm.CONTROL},
    }


@pytest.mark.parametrize(
    ("arm", "how"),
    [
        (Arm.BASELINE, "die-while-loading"),
        (Arm.CANDIDATE, "die-while-loading"),
        (Arm.CANDIDATE, "out-of-memory"),
        (Arm.CANDIDATE, "exit-while-loading"),
        (Arm.CONTROL, "abort-while-loading"),
    ],
)
async def test_failure_to_start_beside_others_does_not_count(tmp_path: Path, arm: Arm, how: str) -> None:
    seen = Seen()
    outcome = await together(servers(tmp_path, seen, **{arm: {"misbehaviour": how}}), seen)
    before = list(ARMS[: ARMS.index(arm)])
    if how == "exit-while-loading":  # as after a signal from outside: not a matter of the others
        assert [record.arm for record in outcome.records] == [*before, arm]
        assert outcome.records[-1].state is ArmState.KILLED
        return
    assert [record.arm for record in outcome.records] == before == [record.arm for record in seen.told]
    assert outcome.repeat is not None
    assert outcome.repeat.arm is arm
    assert {line.split()[0] for line in seen.order if line.endswith("driven")} == set(before)


async def test_death_while_driven_counts(tmp_path: Path) -> None:
    seen = Seen()
    arms = servers(tmp_path, seen)

    async def killing(server: Server) -> None:
        assert isinstance(server, ProcessServer)
        os.kill(server.pid, signal.SIGABRT)
        await asyncio.sleep(60)

    arms[1] = replace(arms[1], use=killing)
    outcome = await together(arms, seen)
    assert [record.state for record in outcome.records] == [ArmState.SERVED, ArmState.DIED]
    assert outcome.repeat is None
    assert "control driven" not in seen.order


async def test_error_of_a_use_stops_all(tmp_path: Path) -> None:
    seen = Seen()
    arms = servers(tmp_path, seen)

    async def failing(_: Server) -> None:
        raise EvidenceError("tokens are missing")

    arms[0] = replace(arms[0], use=failing)
    with pytest.raises(EvidenceError, match="tokens are missing"):
        await together(arms, seen)
    assert len(seen.servers) == 3


@pytest.mark.parametrize(("at", "served"), [("loading", 0), ("baseline driven", 0), ("candidate driven", 1)])
async def test_interrupted(tmp_path: Path, at: str, served: int) -> None:
    seen = Seen()
    loading = {arm: {"FAKE_LOAD_S": "30"} for arm in ARMS} if at == "loading" else {}
    task = asyncio.create_task(together(servers(tmp_path, seen, 0.5, **loading), seen))
    while at != "loading" and at not in seen.order:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)
    task.cancel()
    outcome = await task
    assert [record.state for record in outcome.records] == [ArmState.SERVED] * served + [ArmState.INTERRUPTED]
    assert list(outcome.records) == seen.told
