"""The stages of a run in order: plan, serve, judge, report, seal. Resumes what is already there."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from securesystemslib.signer import CryptoSigner

from qualify import __version__
from qualify.adoption import Finished, adopt_arms, arm_ended, bundles_of, finished_bundle
from qualify.errors import ExitCode, InterruptedRunError, QualifyError
from qualify.evidence.bundle import Bundle, RunState, pack, seal
from qualify.evidence.signature import read_private_key
from qualify.evidence.statement import sign_bundle, subject_sha256
from qualify.faults import check_fault
from qualify.findings import Verdict
from qualify.images.stage import compose_for, inspect_stage
from qualify.inputs import Inputs, read_inputs
from qualify.interrupts import uninterrupted
from qualify.plan import Plan
from qualify.planning import Planned, make_plan
from qualify.record import ArmRecord, ArmState
from qualify.rendering import read_material, write_reports
from qualify.reporting.outcome import tell_outcome
from qualify.reporting.progress import Progress
from qualify.reporting.terminal import FULL_TEXT
from qualify.scenario import Profile
from qualify.serve import Stage, serve_arms
from qualify.transcript import Arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for.

    Attributes:
        release: Release file or its directory.
        bundles: Directory that holds bundles.
        models: Directory that holds synthetic checkpoints.
        with_control: False leaves the control out; then nothing can be qualified.
        urls: Servers that are already running, by arm.
        port: Port for the servers; None takes a free one.
        policy: Used instead of the release's policy.
        profile: Size of the scenarios, used instead of the release's.
        fresh: Serves every arm again, whatever is there.
        key: Private key that signs the statement; None leaves the bundle unsigned.
        registry: ``HOST:PORT`` of the registry for staging; for releases that are served in containers.
    """

    release: Path
    bundles: Path
    models: Path
    with_control: bool = True
    urls: Mapping[Arm, str] = field(default_factory=dict)
    port: int | None = None
    policy: Path | None = None
    profile: Profile | None = None
    fresh: bool = False
    key: Path | None = None
    registry: str = ""


@dataclass(slots=True)
class Run:
    """One run on its way through the stages.

    Attributes:
        options: What the user asked for.
        inputs: The YAML files as types.
        planned: The plan and what serving needs.
        bundle: Where everything goes.
        state: ``run.json``.
        progress: Tells the user what happens.
        signer: The private key that signs the statement; None where the bundle stays unsigned.
    """

    options: Options
    inputs: Inputs
    planned: Planned
    bundle: Bundle
    state: RunState
    progress: Progress
    signer: CryptoSigner | None

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.planned.plan

    def note(self, **changes: Any) -> None:
        """Changes ``run.json``.

        Args:
            changes: Fields of `RunState`.
        """
        self.state = replace(self.state, **changes)
        self.bundle.write("run.json", self.state)


def run_release(options: Options, progress: Progress, console: Console) -> ExitCode:
    """Runs a release from its file to the exit code.

    Args:
        options: What the user asked for.
        progress: Tells the user what happens.
        console: Where the verdict is printed.

    Returns:
        The exit code: the verdict's, or why there could be none.

    Raises:
        QualifyError: Before anything was started.
    """
    inputs = read_inputs(
        options.release,
        with_control=options.with_control,
        policy_file=options.policy,
        profile=options.profile,
    )
    progress.say(f"plan: {inputs.release.name}")
    signer = read_private_key(options.key) if options.key else None
    image = compose_for(inputs, options.registry, attached=bool(options.urls), say=progress.say)
    planned = make_plan(inputs, options.urls, options.models, image)
    if signer is not None:
        subject_sha256(planned.plan.subject)  # refuses what nothing can be stated about
    if not options.fresh and not options.urls:
        finished = finished_bundle(options.bundles, planned.plan, progress.say)
        if finished is not None:
            return _tell_finished(finished, signer, progress, console)
    run = _open_run(options, inputs, planned, progress, signer)
    progress.say(f"bundle: {run.bundle.root}")
    try:
        trouble = _serve(run) if _inspect(run) else None
        pack(run.bundle)
        material = read_material(run.bundle)
        run.bundle.write("verdict.json", material.verdict)
        missing = write_reports(material, run.bundle, progress.say)
    except KeyboardInterrupt:
        _leave(run)
        raise
    finally:
        # whatever ended the run: what is in the bundle is whole, and only a sealed one is taken over
        with uninterrupted():
            seal(run.bundle)
    _tell(run, material.verdict, missing, console)
    return trouble or material.verdict.result.exit_code


def _leave(run: Run) -> None:
    """Leaves a run that was interrupted between its stages or while it was judged."""
    if run.state.status != "complete":
        run.note(why=InterruptedRunError().what)
    # its reports are not all there: without it the next run judges these arms again, in a bundle of its own
    (run.bundle.root / "verdict.json").unlink(missing_ok=True)


def _tell_finished(
    finished: Finished, signer: CryptoSigner | None, progress: Progress, console: Console
) -> ExitCode:
    bundle, verdict = finished.bundle, finished.verdict
    day = bundle.read("run.json", RunState).oldest[:10]
    progress.say(
        f"nothing has changed since {bundle.root} (evidence of {day}); nothing is served again, "
        "except with --fresh"
    )
    if signer is not None:
        sign_bundle(bundle, verdict, signer)
    tell_outcome(console, verdict, str(bundle.root), FULL_TEXT)
    return verdict.result.exit_code


def _open_run(
    options: Options, inputs: Inputs, planned: Planned, progress: Progress, signer: CryptoSigner | None
) -> Run:
    plan = planned.plan
    now = datetime.datetime.now(datetime.UTC)
    root = options.bundles / f"{plan.release}-{now:%Y%m%dT%H%M%S%f}-{plan.plan_id[:8]}"
    root.mkdir(parents=True)
    bundle = Bundle(root)
    date = now.isoformat(timespec="seconds")
    state = RunState(
        status="incomplete",
        why="the harness was ended before it could say why",
        date=date,
        evidence_date=date,
        harness=__version__,
        plan_id=plan.plan_id,
    )
    bundle.write("run.json", state)
    bundle.write("plan.json", plan)
    for name, text in inputs.texts.items():
        bundle.write_bytes(name, text.encode())
    run = Run(options, inputs, planned, bundle, state, progress, signer)
    if not options.fresh and not options.urls:
        adopted = adopt_arms(plan, bundle, options.bundles, progress.say)
        if adopted.arms:
            run.note(adopted=adopted.arms, evidence_date=min(date, adopted.evidence_date))
    return run


def _inspect(run: Run) -> bool:
    """Inspects the image, where there is one; False where nothing may be served from it."""
    if run.planned.image is None:
        return True
    earlier = [] if run.options.fresh else bundles_of(run.options.bundles)
    gpus = run.inputs.release.serving.container.gpus
    try:
        found = inspect_stage(run.planned.image, run.bundle, earlier, gpus=gpus, say=run.progress.say)
        if found.faults:
            check_fault(run.inputs.release, run.inputs.source, found.faults)
    except QualifyError as error:
        run.note(why=f"nothing was served from the image: {error}")
        raise
    if found.evidence_date:
        run.note(evidence_date=min(run.state.evidence_date, found.evidence_date))
    if not found.good:
        run.note(why="the inspection of the image found something wrong, so nothing was served")
    return found.good


def _serve(run: Run) -> ExitCode | None:
    """Serves each arm that is not there yet.

    Returns:
        The exit code where there is trouble that no verdict can speak of; None otherwise.
    """
    there = [planned for planned in run.plan.arms if arm_ended(run.bundle, planned.arm)]
    records = [run.bundle.read(f"arms/{planned.arm}/arm.json", ArmRecord) for planned in there]
    stage = Stage(
        inputs=run.inputs,
        planned=run.planned,
        bundle=run.bundle,
        port=run.options.port,
        progress=run.progress,
    )
    try:
        if all(record.state is ArmState.SERVED for record in records):
            records += serve_arms(stage, run.plan.arms[len(there) :])
        why, trouble = _consequence(records[-1])
    except QualifyError as error:
        run.progress.say(str(error))
        why, trouble = str(error), error.exit_code
    run.note(status="incomplete" if why else "complete", why=why)
    return trouble


def _consequence(record: ArmRecord) -> tuple[str, ExitCode | None]:
    """Why the run is not complete because of an arm, and the exit code where no verdict can speak of it."""
    why = f"{record.arm}: {record.state}" + (f": {record.detail}" if record.detail else "")
    if record.state is ArmState.SERVED:
        return "", None
    if record.state is ArmState.INTERRUPTED:
        return why, ExitCode.INTERRUPTED
    if record.state is ArmState.MACHINERY:
        return why, ExitCode.MACHINERY
    if record.state is ArmState.KILLED:
        return why, None
    if record.arm is Arm.BASELINE:
        return why, ExitCode.MACHINERY
    if record.state is ArmState.NEVER_READY:
        return why, None
    # The candidate's own failure is evidence and needs no control; the control's leaves the verdict open.
    return "", None


def _tell(run: Run, verdict: Verdict, missing: Sequence[str], console: Console) -> None:
    if run.signer is not None:
        sign_bundle(run.bundle, verdict, run.signer)
    tell_outcome(console, verdict, str(run.bundle.root), FULL_TEXT)
    if missing:
        named = ", ".join(missing)
        console.print(f"reports that could not be written: {named}", markup=False, soft_wrap=True)
    if run.state.status != "complete":
        console.print(f"this bundle is incomplete: {run.state.why}", markup=False, soft_wrap=True)
