"""The serve stage: each arm driven by all scenarios, its server started alone or beside the others'."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qualify.armcommand import arm_command, arm_container
from qualify.errors import EvidenceError, InterruptedRunError
from qualify.evidence.bundle import PREFIXES, Bundle
from qualify.inputs import Inputs
from qualify.plan import PlannedArm
from qualify.planning import Planned
from qualify.record import ArmRecord, ArmState, PrefixCache
from qualify.reporting.progress import Progress, minutes
from qualify.serving.arms import ServerCommand
from qualify.serving.attach import AttachLauncher
from qualify.serving.configuration import keep_configuration
from qualify.serving.docker import DockerLauncher
from qualify.serving.launcher import Launcher, Server
from qualify.serving.probes.sampler import Sampler, sampled
from qualify.serving.process import ProcessLauncher, free_ports
from qualify.serving.readiness import WaitProgress
from qualify.serving.room import check_room
from qualify.serving.session import Session, Use
from qualify.serving.together import ArmServer, serve_alone, serve_together
from qualify.traffic.connection import allow_many_connections
from qualify.traffic.driver import DriveEnd, DriveProgress, drive_run
from qualify.traffic.forced import forced_tokens
from qualify.transcript import Arm, Decode, RunKey, planned_runs

_LOG = "server.log"
_LOG_BESIDE = "server-beside.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What serving needs.

    Attributes:
        inputs: The YAML files as types.
        planned: The plan, the model and its vocabulary.
        bundle: Logs, step logs and transcripts go there, and what became of each arm.
        port: Port to listen on, and those after it where servers run side by side; None takes free ones.
        progress: Tells the user what happens.
    """

    inputs: Inputs
    planned: Planned
    bundle: Bundle
    port: int | None
    progress: Progress


def serve_arms(stage: Stage, arms: Sequence[PlannedArm]) -> list[ArmRecord]:
    """Serves arms, drives all their runs in the given order, and stops them.

    Args:
        stage: What serving needs.
        arms: In order: the baseline's free run gives the tokens that are forced.

    Returns:
        What became of each, written into the bundle, too; up to the first that did not serve to its end.

    Raises:
        UsageError: A port is taken.
        MachineryError: There is no room for the servers side by side; none was started.
        EvidenceError: The baseline's free run lacks the tokens to force.
        InterruptedRunError: The user asked to stop while a server was being stopped whose arm was whole.
    """
    records: list[ArmRecord] = []
    beside = ""
    allow_many_connections()  # before any server starts: all arms' servers inherit the limit
    if stage.planned.plan.parallel_arms and len(arms) > 1:
        records, beside = _side_by_side(stage, arms)
        if not beside:
            return records
    for arm in arms[len(records) :]:
        stage.progress.begin(arm.arm)
        stage.progress.say(f"{arm.arm}: starting" + (f" with fault {arm.fault}" if arm.fault else ""))
        ran = serve_alone(_arm_server(stage, arm, stage.port))
        records.append(replace(ran.outcome, beside=beside))
        _write(stage, records[-1])
        beside = ""
        _heed(ran.interrupted, records)
        if records[-1].state is not ArmState.SERVED:
            break
    return records


def _side_by_side(stage: Stage, arms: Sequence[PlannedArm]) -> tuple[list[ArmRecord], str]:
    """Serves arms side by side.

    Returns:
        The records that stand, and how the attempt of the arm after those ended where it has to be repeated
        alone; then the arms from it on have left nothing behind but that attempt's log.
    """
    check_room(stage.inputs.release, [arm.arm for arm in arms], stage.planned.model)
    stage.progress.begin(*(arm.arm for arm in arms))
    stage.progress.say(f"starting side by side: {', '.join(arm.arm for arm in arms)}")
    ports = free_ports(len(arms)) if stage.port is None else range(stage.port, stage.port + len(arms))
    servers = [_arm_server(stage, arm, port) for arm, port in zip(arms, ports, strict=True)]
    ran = serve_together(servers, functools.partial(_write, stage))
    together = ran.outcome
    if together.repeat is None:
        _heed(ran.interrupted, together.records)
        return list(together.records), ""
    failed = together.repeat
    beside = f"{failed.state}" + (f": {failed.detail}" if failed.detail else "")
    stage.progress.say(f"{failed.arm}: beside the others {beside}; starts again alone")
    for arm in arms[len(together.records) :]:
        _clear(stage.bundle.arm(arm.arm), keep_log=arm.arm is failed.arm)
    _heed(ran.interrupted, together.records)
    return list(together.records), beside


def _heed(interrupted: bool, records: Sequence[ArmRecord]) -> None:
    """Ends the stage where the user asked for it and no arm's record says so."""
    if interrupted and not any(record.state is ArmState.INTERRUPTED for record in records):
        raise InterruptedRunError


def _clear(directory: Path, *, keep_log: bool) -> None:
    """Removes what an attempt that does not count has left; step logs would be appended to."""
    log = directory / _LOG
    kept = log.read_bytes() if keep_log and log.exists() else None
    shutil.rmtree(directory)
    if kept is not None:
        directory.mkdir()
        (directory / _LOG_BESIDE).write_bytes(kept)


def _write(stage: Stage, record: ArmRecord) -> None:
    stage.bundle.write(f"arms/{record.arm}/arm.json", record)
    detail = f" ({record.detail})" if record.detail else ""
    stage.progress.say(f"{record.arm}: {record.state} after {stage.progress.took(record.arm)}{detail}")


def _arm_server(stage: Stage, arm: PlannedArm, port: int | None) -> ArmServer:
    directory = stage.bundle.arm(arm.arm)
    directory.mkdir(parents=True, exist_ok=True)
    serving = stage.inputs.release.serving
    return ArmServer(
        session=Session(
            arm=arm.arm,
            fault=arm.fault,
            served_name=serving.served_name,
            ready_within_s=serving.ready_within_s,
        ),
        launcher=_launcher(stage, arm, directory, port),
        prepare=_prepare(stage, arm.arm, directory),
        use=_drive(stage, arm.arm, directory),
        directory=directory,
        progress=functools.partial(_show_wait, stage.progress, arm.arm),
    )


def _prepare(stage: Stage, arm: Arm, directory: Path) -> Callable[[Server], Awaitable[None]]:
    async def prepare(server: Server) -> None:
        stage.progress.say(f"{arm}: ready after {stage.progress.took(arm)} at {server.url}")
        await keep_configuration(server.url, directory)

    return prepare


def _drive(stage: Stage, arm: Arm, directory: Path) -> Use:
    async def drive(server: Server) -> str | None:
        prefixes: list[PrefixCache] = []
        async with sampled(server, directory) as sampler:
            ways = {way for scenario in stage.inputs.scenarios for way in scenario.decode}
            for key in planned_runs(arm, ways, stage.planned.plan.baseline_forced_runs):
                shown = _Drive(stage.progress, sampler)
                outcome = await drive_run(
                    key,
                    stage.inputs.scenarios,
                    url=server.url,
                    served_name=stage.inputs.release.serving.served_name,
                    vocabulary=stage.planned.vocabulary,
                    path=directory / f"{key.decode}.run{key.number}.jsonl",
                    forced=_forced(stage.bundle) if key.decode is not Decode.FREE else None,
                    progress=shown.tell,
                )
                stage.progress.say(
                    f"{key}: {outcome.finished} of {outcome.expected} requests, "
                    f"{outcome.failed} failed{shown.speed}"
                )
                prefixes.append(PrefixCache(run=key, kept=outcome.prefixes_kept))
                stage.bundle.write(f"arms/{arm}/{PREFIXES}", prefixes)
                if outcome.end is not DriveEnd.DRIVEN:
                    return outcome.trouble
        return None

    return drive


def _forced(bundle: Bundle) -> dict[str, tuple[int, ...]]:
    path = bundle.transcripts(Arm.BASELINE).get(RunKey(Arm.BASELINE, Decode.FREE, 1))
    if path is None:
        raise EvidenceError("the baseline's free run is missing; its tokens are what is forced")
    return dict(forced_tokens(path))


def _launcher(stage: Stage, arm: PlannedArm, directory: Path, port: int | None) -> Launcher:
    if arm.url is not None:
        return AttachLauncher(arm.url)
    inputs, image, model = stage.inputs, stage.planned.image, stage.planned.model
    stop_within_s = inputs.release.serving.stop_within_s

    def command(chosen: int) -> ServerCommand:
        return arm_command(inputs, arm.arm, model=model, directory=directory.absolute(), port=chosen)

    if image is not None:
        reference = image.identity.reference
        container = arm_container(inputs, arm.arm, image=reference, model=model, directory=directory)
        return DockerLauncher(container, command, stop_within_s=stop_within_s, port=port)
    return ProcessLauncher(command, log=directory / _LOG, stop_within_s=stop_within_s, port=port)


def _show_wait(progress: Progress, arm: Arm, wait: WaitProgress) -> None:
    progress.wait(
        f"{arm}: not ready after {wait.elapsed_s:.0f} s: {wait.waiting_for}",
        about=arm,
        detail=f"log: {wait.last_line}" if wait.last_line else "",
    )


class _Drive:
    """Shows how one run is driven, and how fast it was.

    Args:
        progress: Tells the user what happens.
        sampler: Is told what is being driven.
    """

    def __init__(self, progress: Progress, sampler: Sampler) -> None:
        self._progress = progress
        self._sampler = sampler
        self._last: DriveProgress | None = None

    def tell(self, drive: DriveProgress) -> None:
        """Shows how far the run is."""
        self._last = drive
        self._sampler.driving(str(drive.run), drive.scenario, drive.in_flight)
        self._progress.wait(
            f"{drive.run}: {drive.done} of {drive.total} done, {drive.in_flight} in flight, "
            f"{drive.tokens_per_s:.0f} tokens/s",
            about=drive.run.arm,
            detail=f"{drive.scenario}/{drive.phase}, {drive.failed} failed",
        )

    @property
    def speed(self) -> str:
        """Tokens a second and the time that the run took; empty where nothing was driven."""
        if self._last is None:
            return ""
        return f", {self._last.tokens_per_s:.0f} tokens/s, {minutes(self._last.elapsed_s)}"
