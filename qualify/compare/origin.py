"""Checks that each run's answers are its own, and that no step log was cut short."""

from __future__ import annotations

from qualify.findings import Finding, Weight
from qualify.record import RunRecord
from qualify.transcript import RunKey


def check_origin(record: RunRecord) -> list[Finding]:
    """Findings about answers that two runs share, and about step logs that end within a line.

    Args:
        record: The run record.
    """
    return [*_shared(record), *_torn(record)]


def _shared(record: RunRecord) -> list[Finding]:
    """A request is sent with an id of its own in each run: where two runs have one, its answer was copied."""
    first: dict[str, RunKey] = {}
    shared: dict[tuple[RunKey, RunKey], list[str]] = {}
    for key in sorted(record.runs, key=str):
        for head in record.runs[key].heads:
            other = first.setdefault(head.server_request_id, key)
            if other != key:
                shared.setdefault((other, key), []).append(head.request_id)
    return [
        Finding(
            rule="shared-answers",
            weight=Weight.UNTESTED,
            arm=own.arm,
            request_ids=tuple(sorted(names)),
            summary=f"{len(names)} answers of run {own} have the ids with which run {other} was sent: one of "
            "them is a copy.",
            advice="Run again.",
        )
        for (other, own), names in shared.items()
    ]


def _torn(record: RunRecord) -> list[Finding]:
    return [
        Finding(
            rule="step-log",
            weight=Weight.NOTE,
            arm=arm,
            summary=f"The step log of the {arm} ends within a line: what came after is not known.",
            advice="A server that is stopped by the harness leaves whole lines; look for a full disk.",
        )
        for arm in sorted(record.torn)
    ]
