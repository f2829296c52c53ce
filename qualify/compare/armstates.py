"""What an arm's end means for the release."""

from __future__ import annotations

from collections.abc import Mapping

from qualify.findings import Finding, Weight
from qualify.record import ArmRecord, ArmState, RunRecord
from qualify.transcript import Arm

BY_ITSELF: Mapping[ArmState, str] = {
    ArmState.START_FAILED: "ended by itself before it was ready",
    ArmState.DIED: "ended by itself while requests were sent",
    ArmState.HUNG: "stopped answering with requests in flight",
}
"""Ends that are a defect of the candidate where the baseline served the same."""

OTHERWISE: Mapping[ArmState, str] = {
    ArmState.NOT_STARTED: "was never started",
    ArmState.NEVER_READY: "was not ready in time",
    ArmState.KILLED: "was ended by a signal from outside",
    ArmState.MACHINERY: "could not be started for a reason that is not its own",
    ArmState.INTERRUPTED: "was interrupted by the user",
}


def check_arms(record: RunRecord) -> list[Finding]:
    """One finding for each configured arm that did not serve to the end, and a note where it was repeated.

    Args:
        record: The run record; an arm of which it says nothing was not started.
    """
    findings = []
    for arm in record.expected_arms:
        entry = record.arms.get(arm) or ArmRecord(arm=arm, state=ArmState.NOT_STARTED)
        if entry.beside:
            findings.append(_repeated(entry))
        if entry.state is not ArmState.SERVED:
            findings.append(_finding(record, entry))
    return findings


def _repeated(entry: ArmRecord) -> Finding:
    return Finding(
        rule="start-up",
        weight=Weight.NOTE,
        arm=entry.arm,
        summary=f"The {entry.arm}'s first attempt, beside the other arms' servers, does not count: "
        f"{entry.beside}. It was started again, alone.",
    )


def _finding(record: RunRecord, entry: ArmRecord) -> Finding:
    baseline = record.arms.get(Arm.BASELINE)
    served = baseline is not None and baseline.state is ArmState.SERVED
    defect = entry.arm is Arm.CANDIDATE and entry.state in BY_ITSELF and served
    what = BY_ITSELF.get(entry.state) or OTHERWISE[entry.state]
    detail = f": {entry.detail}" if entry.detail else ""
    compared = ", where the baseline served the same requests on the same machine" if defect else ""
    return Finding(
        rule="start-up" if entry.state is ArmState.START_FAILED else "arm-state",
        weight=Weight.DEFECT if defect else Weight.UNTESTED,
        arm=entry.arm,
        summary=f"The {entry.arm} {what}{compared}{detail}",
        advice=_ADVICE[entry.state],
        evidence=entry.log_tail,
    )


_ADVICE: Mapping[ArmState, str] = {
    ArmState.START_FAILED: "Read the end of its log; the same command starts it alone.",
    ArmState.DIED: "Read the end of its log and the kernel log.",
    ArmState.HUNG: "Read the end of its log; a deadlock in a graph often shows as a hang.",
    ArmState.NOT_STARTED: "Run again, without leaving it out.",
    ArmState.NEVER_READY: "Read the end of its log, or allow it more time (ready_within_s).",
    ArmState.KILLED: "Find out who ended it (memory killer, a colleague, the scheduler) and run again.",
    ArmState.MACHINERY: "Repair the machine (port, memory, files) and run again.",
    ArmState.INTERRUPTED: "Run again to the end.",
}
