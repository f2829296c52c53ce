"""The serve stage: one arm, driven by all scenarios."""

from __future__ import annotations

import functools
from pathlib import Path

from qualify.errors import EvidenceError
from qualify.evidence.bundle import Bundle
from qualify.inputs import Inputs
from qualify.plan import PlannedArm
from qualify.planning import Planned
from qualify.record import ArmRecord
from qualify.reporting.progress import Progress
from qualify.serving.arms import ServerCommand, server_command
from qualify.serving.attach import AttachLauncher
from qualify.serving.docker import EVIDENCE_AT, MODEL_AT, DockerLauncher
from qualify.serving.docker import Serving as ContainerServing
from qualify.serving.launcher import Launcher, Server
from qualify.serving.process import ProcessLauncher
from qualify.serving.readiness import WaitProgress
from qualify.serving.session import Session, serve
from qualify.serving.telemetry import watched_gpus
from qualify.traffic.driver import DriveEnd, DriveProgress, drive_run
from qualify.traffic.forced import forced_tokens
from qualify.transcript import Arm, Decode, RunKey


def serve_arm(
    inputs: Inputs,
    planned: Planned,
    arm: PlannedArm,
    bundle: Bundle,
    port: int | None,
    progress: Progress,
) -> ArmRecord:
    """Serves one arm, drives all its runs, and stops it.

    Args:
        inputs: The YAML files as types.
        planned: The plan, the model and its vocabulary.
        arm: The arm.
        bundle: Log, step log and transcripts go there.
        port: Port to listen on; None takes a free one.
        progress: Tells the user what happens.

    Returns:
        What became of the arm.

    Raises:
        UsageError: The port is taken.
        EvidenceError: The baseline's free run lacks the tokens to force.
    """
    directory = bundle.arm(arm.arm)
    directory.mkdir(parents=True, exist_ok=True)
    launcher = _launcher(inputs, planned, arm, directory, port)
    serving = inputs.release.serving

    async def use(server: Server) -> str | None:
        progress.say(f"{arm.arm}: ready at {server.url}")
        for key in runs_of(inputs, planned, arm.arm):
            outcome = await drive_run(
                key,
                inputs.scenarios,
                url=server.url,
                served_name=serving.served_name,
                vocabulary=planned.vocabulary,
                path=directory / f"{key.decode}.run{key.number}.jsonl",
                forced=_forced(bundle) if key.decode is Decode.FORCED else None,
                progress=functools.partial(_show_drive, progress),
            )
            progress.say(f"{key}: {outcome.finished} of {outcome.expected} requests, {outcome.failed} failed")
            if outcome.end is not DriveEnd.DRIVEN:
                return outcome.trouble
        return None

    progress.say(f"{arm.arm}: starting" + (f" with fault {arm.fault}" if arm.fault else ""))
    session = Session(
        arm=arm.arm,
        fault=arm.fault,
        served_name=serving.served_name,
        ready_within_s=serving.ready_within_s,
    )
    with watched_gpus(directory):
        return serve(session, launcher, use, progress=functools.partial(_show_wait, progress, arm.arm))


def runs_of(inputs: Inputs, planned: Planned, arm: Arm) -> list[RunKey]:
    """The runs that an arm is driven with, in order: free first, since its tokens are what is forced.

    Args:
        inputs: The scenarios.
        planned: How often the baseline is forced.
        arm: The arm.

    Returns:
        One free run, then the forced ones where any scenario has them.
    """
    forced = any("forced" in scenario.decode for scenario in inputs.scenarios)
    repeats = planned.plan.baseline_forced_runs if arm is Arm.BASELINE else 1
    runs = [RunKey(arm, Decode.FREE, 1)]
    return runs + [RunKey(arm, Decode.FORCED, number + 1) for number in range(repeats if forced else 0)]


def _forced(bundle: Bundle) -> dict[str, tuple[int, ...]]:
    path = bundle.transcripts(Arm.BASELINE).get(RunKey(Arm.BASELINE, Decode.FREE, 1))
    if path is None:
        raise EvidenceError("the baseline's free run is missing; its tokens are what is forced")
    return dict(forced_tokens(path))


def _launcher(
    inputs: Inputs, planned: Planned, arm: PlannedArm, directory: Path, port: int | None
) -> Launcher:
    if arm.url is not None:
        return AttachLauncher(arm.url)

    image = planned.image

    def command(chosen: int) -> ServerCommand:
        return server_command(
            inputs.release,
            arm.arm,
            model=MODEL_AT if image else planned.model,
            home=inputs.home.absolute(),
            arm_directory=EVIDENCE_AT if image else directory.absolute(),
            port=chosen,
        )

    if image is not None:
        container = ContainerServing(
            image=image.identity.reference,
            arm=arm.arm,
            model=planned.model,
            directory=directory,
            limits=inputs.release.serving.container,
        )
        return DockerLauncher(
            container, command, stop_within_s=inputs.release.serving.stop_within_s, port=port
        )
    return ProcessLauncher(
        command,
        log=directory / "server.log",
        stop_within_s=inputs.release.serving.stop_within_s,
        port=port,
    )


def _show_wait(progress: Progress, arm: Arm, wait: WaitProgress) -> None:
    progress.wait(f"{arm}: not ready after {wait.elapsed_s:.0f} s: {wait.waiting_for}; log: {wait.last_line}")


def _show_drive(progress: Progress, drive: DriveProgress) -> None:
    progress.wait(
        f"{drive.run} {drive.scenario}/{drive.phase}: {drive.done} of {drive.total} done, "
        f"{drive.in_flight} in flight, {drive.failed} failed, {drive.tokens_per_s:.0f} tokens/s"
    )
