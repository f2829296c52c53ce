"""Checks what the ranks of one server recorded: graphs on every rank, the same steps, right metadata."""

from __future__ import annotations

from qualify.findings import NOT_MEASURED, CoverageCell, Finding, Weight
from qualify.ranksteps import RankSteps
from qualify.record import RunRecord
from qualify.transcript import Arm

_HOW = "step logs of the ranks"


def ranks_covered(record: RunRecord, replay_share: float) -> tuple[CoverageCell, ...]:
    """Graph evidence for each rank after rank 0, whose own is that of the arm.

    Args:
        record: The run record.
        replay_share: Share of a rank's decode steps that must have been replayed as a whole.

    Returns:
        Nothing where one rank serves.
    """
    cells = []
    for rank in record.ranks.get(Arm.CANDIDATE, ())[1:]:
        good = rank.decode > 0 and rank.whole >= replay_share * rank.decode
        cells.append(
            CoverageCell(
                name=f"decode steps of the candidate that were replays, rank {rank.rank}",
                reached=f"{rank.whole} of {rank.decode} ({rank.whole / rank.decode:.1%})"
                if rank.decode
                else NOT_MEASURED,
                required=f"at least {replay_share:.1%}",
                satisfied=good,
                how=_HOW,
            )
        )
    for rank in record.ranks.get(Arm.BASELINE, ())[1:]:
        cells.append(
            CoverageCell(
                name=f"replays in the baseline, rank {rank.rank}",
                reached=f"{rank.replayed} of {rank.steps} steps" if rank.steps else NOT_MEASURED,
                required="none",
                satisfied=rank.steps > 0 and rank.replayed == 0,
                how=_HOW,
            )
        )
    return tuple(cells)


def metadata_covered(record: RunRecord) -> tuple[CoverageCell, ...]:
    """Whether each rank of the candidate looked at its C128A rows, where it was asked to.

    Args:
        record: The run record.

    Returns:
        Nothing where nobody was asked. In the baseline nothing reads rows at the capacity stride, and the
        control's fault is known: what was looked at there is worth a note at most.
    """
    if Arm.CANDIDATE not in record.looks_at_metadata:
        return ()
    return tuple(
        CoverageCell(
            name=f"decode steps of the candidate whose C128A rows were looked at, rank {rank.rank}",
            reached=f"{rank.looked_decode} of {rank.decode}" if rank.looked else NOT_MEASURED,
            required="all",
            satisfied=0 < rank.decode == rank.looked_decode,
            how=_HOW,
        )
        for rank in record.ranks.get(Arm.CANDIDATE, ())
    )


def check_ranks(record: RunRecord) -> list[Finding]:
    """Findings about single ranks.

    Wrong metadata of the candidate is a defect whatever its answers were: its graphs read these rows. In the
    baseline it is none, since nothing there reads rows at the capacity stride; in the control it says where
    the fault was seen.

    Args:
        record: The run record.
    """
    found = []
    for arm, ranks in sorted(record.ranks.items()):
        for rank in ranks:
            if arm is not Arm.CONTROL:
                found += _unequal(arm, rank)
            if rank.wrong and arm is not Arm.BASELINE:
                found.append(_wrong(arm, rank))
    return found


def _unequal(arm: Arm, rank: RankSteps) -> list[Finding]:
    said = []
    if rank.rank and rank.steps and rank.other:
        said.append(f"Rank {rank.rank} of the {arm} did not run the steps of rank 0: {rank.other}.")
    if rank.disagreed and not rank.wrong:
        said.append(
            f"Rank {rank.rank} of the {arm} built other C128A rows than rank 0 in {rank.disagreed} of "
            f"{rank.looked} steps."
        )
    return [
        Finding(
            rule="ranks",
            weight=Weight.UNTESTED,
            arm=arm,
            summary=summary,
            advice="All ranks of a tensor parallel group run the same steps on the same block tables: look "
            "into the step logs.",
        )
        for summary in said
    ]


def _wrong(arm: Arm, rank: RankSteps) -> Finding:
    defect = arm is Arm.CANDIDATE
    rows = ", ".join(str(row) for row in rank.wrong_rows)
    return Finding(
        rule="metadata",
        weight=Weight.DEFECT if defect else Weight.NOTE,
        arm=arm,
        rows=rank.wrong_rows,
        summary=f"Rank {rank.rank} of the {arm} had wrong C128A rows where a graph reads them, in "
        f"{rank.wrong} of {rank.looked} steps; rows: {rows}.",
        advice="Run the contract suite on this rank's builder (docs/contracts.md)." if defect else "",
    )
