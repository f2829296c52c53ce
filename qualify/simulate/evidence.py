"""Recorded runs of known truth, each judged as if it were a candidate."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qualify.errors import UsageError
from qualify.findings import Result, Verdict
from qualify.foreign.answers import ForeignRun
from qualify.foreign.formats import parse_json
from qualify.foreign.importing import lay_out
from qualify.gate import judge
from qualify.policy import Policy
from qualify.transcript import Arm

FOLDER = Path("reports/evidence/h200-transcripts")
RUN_DATE = "2026-12-01"
POLICY = Policy.model_validate({"format": "qualify/policy/1", "name": "recorded-runs"})

HARMLESS = frozenset({"capacity"})
"""Metadata without a fault."""


@dataclass(frozen=True, slots=True)
class Label:
    """What a recorded file is: ``<scenario>.<mode>.<metadata>[.forced|.free].run<N>.json``.

    Attributes:
        scenario: Its scenario.
        mode: ``eager``, ``full-graph`` or ``full-graph-async``.
        metadata: ``capacity``, or the fault.
        number: Run number.
    """

    scenario: str
    mode: str
    metadata: str
    number: int


@dataclass(frozen=True, slots=True)
class Case:
    """One recorded run, judged as the candidate.

    Attributes:
        folder: The set that it belongs to.
        scenarios: Scenarios judged: all that the run has, all but one, or one.
        left_out: The scenario that was left out, where it was one.
        mode: How it was served.
        metadata: ``capacity``, or the fault.
        number: Run number.
        faulty: True where the fault acts, so that it must be rejected; False where it must never be; None
            where both are right, because too little of it was recorded.
    """

    folder: str
    scenarios: tuple[str, ...]
    left_out: str | None
    mode: str
    metadata: str
    number: int
    faulty: bool | None


RecordedSet = Mapping[Label, Sequence[ForeignRun]]


def load_set(archive: Path) -> RecordedSet:
    """Reads one set of recorded runs.

    Args:
        archive: A ``.tar.xz`` of JSON files.

    Raises:
        UsageError: The archive is not there or not readable.
    """
    found: dict[Label, list[ForeignRun]] = {}
    try:
        with tarfile.open(archive, "r:xz") as members:
            for member in members:
                content = members.extractfile(member)
                if content is not None:
                    label = label_of(member.name)
                    found.setdefault(label, []).append(parse_json(content.read(), f"{archive}:{member.name}"))
    except (OSError, tarfile.TarError) as error:
        raise UsageError(f"cannot be read: {error}", where=str(archive)) from error
    return found


def label_of(name: str) -> Label:
    """What a file is, by its name."""
    parts = name.removesuffix(".json").split(".")
    return Label(parts[0], parts[1], parts[2], int(parts[-1].removeprefix("run")))


def cases(folder: str, recorded: RecordedSet) -> list[Case]:
    """Every run of a set but the baseline's own: all its scenarios, all but each one, and each alone."""
    names = sorted({label.scenario for label in recorded})
    runs = sorted({(label.mode, label.metadata, label.number) for label in recorded})
    found = []
    for mode, metadata, number in runs:
        if (mode, metadata) == ("eager", "capacity") and number < 3:
            continue
        mine = tuple(name for name in names if Label(name, mode, metadata, number) in recorded)
        groups: list[tuple[tuple[str, ...], str | None]] = [(mine, None)]
        if len(mine) > 2:
            groups += [(tuple(name for name in mine if name != left), left) for left in mine]
        groups += [((name,), None) for name in mine]
        found += [
            Case(folder, group, left, mode, metadata, number, truth(folder, group, left, mode, metadata))
            for group, left in groups
        ]
    return found


ALONE = frozenset({"short16", "8x_short", "16x_short"})
"""Scenarios that carry a packed stride's rejection alone."""

NEVER_SHOWS = frozenset({"single", "4x_one_long"})
"""Scenarios in which a packed stride reads the right rows."""


def truth(folder: str, group: tuple[str, ...], left_out: str | None, mode: str, metadata: str) -> bool | None:
    """What is known of a recorded run, from how it was made.

    Args:
        folder: Folder of its set; its name says what served and whether the C4A layers were muted.
        group: Scenarios that are judged.
        left_out: The scenario that was left out of a whole set; None where none was.
        mode: ``eager`` or the graph mode that it ran with.
        metadata: How the rows' stride was chosen.

    Returns:
        True where it must be rejected, False where it must not be, None where it may be either.
    """
    stride = metadata.startswith("packed")
    if metadata in HARMLESS or mode == "eager" or (stride and set(group) <= NEVER_SHOWS):
        return False
    exact = folder.endswith("muted") and "server-c4" not in folder
    whole = len(group) > 1 and left_out is None
    alone = metadata == "packed" and len(group) == 1 and group[0] in ALONE
    return True if whole or alone or (exact and metadata == "packed") else None


def judge_case(case: Case, recorded: RecordedSet) -> Verdict:
    """Judges one recorded run against all eager runs of its set."""
    baseline: list[ForeignRun] = []
    candidate: list[ForeignRun] = []
    for label, runs in recorded.items():
        if label.scenario not in case.scenarios:
            continue
        if (label.mode, label.metadata, label.number) == (case.mode, case.metadata, case.number):
            candidate += runs
        elif (label.mode, label.metadata) == ("eager", "capacity"):
            baseline += runs
    record = lay_out({Arm.BASELINE: tuple(baseline), Arm.CANDIDATE: tuple(candidate)}, run_date=RUN_DATE)
    return judge(record, POLICY, "0" * 64)


def as_expected(case: Case, verdict: Verdict) -> bool:
    """True where the verdict fits the truth; without a control the rest is inconclusive, never qualified."""
    rejected = verdict.result is Result.REJECTED
    return verdict.result is not Result.QUALIFIED and case.faulty in (None, rejected)
