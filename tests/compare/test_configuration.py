from __future__ import annotations

from dataclasses import replace

import pytest

from qualify.findings import Result
from qualify.gate import judge
from qualify.record import ResolvedConfiguration, RunRecord
from qualify.release import FULL_GRAPHS
from qualify.transcript import Arm
from tests.judgefactory import POLICY, World, build

FULL = ResolvedConfiguration(graph_mode="FULL_DECODE_ONLY", capture_sizes=(1, 2, 4, 8))
EAGER = ResolvedConfiguration(graph_mode="NONE", enforce_eager=True)
PIECES = ResolvedConfiguration(graph_mode="PIECEWISE", capture_sizes=(1, 2, 4, 8))
UNREADABLE = ResolvedConfiguration(why="/server_info answers 404")


def record(candidate: ResolvedConfiguration, baseline: ResolvedConfiguration) -> RunRecord:
    built = build(World(scenarios={"eight": 8, "sixteen": 16}))
    return replace(
        built, replay=FULL_GRAPHS, configurations={Arm.CANDIDATE: candidate, Arm.BASELINE: baseline}
    )


@pytest.mark.parametrize(
    ("candidate", "baseline", "result"),
    [
        (FULL, EAGER, Result.QUALIFIED),
        (PIECES, EAGER, Result.INCONCLUSIVE),
        (EAGER, EAGER, Result.INCONCLUSIVE),
        (FULL, FULL, Result.INCONCLUSIVE),
        (FULL, PIECES, Result.INCONCLUSIVE),
        (UNREADABLE, UNREADABLE, Result.QUALIFIED),
    ],
)
def test_what_the_servers_resolved(
    candidate: ResolvedConfiguration, baseline: ResolvedConfiguration, result: Result
) -> None:
    verdict = judge(record(candidate, baseline), POLICY, "0" * 64)
    assert verdict.result is result, verdict.reasons
    limited = "Graph mode that the candidate's server resolved: not measured." in verdict.limitations
    assert limited == (candidate is UNREADABLE)
    cells = {cell.name: cell.reached for cell in verdict.coverage}
    if candidate is FULL:
        assert cells["graph mode that the candidate's server resolved"] == "FULL_DECODE_ONLY, 4 sizes up to 8"


def test_no_cells_where_nothing_was_kept_or_no_graphs_are_expected() -> None:
    kept = record(FULL, EAGER)
    for other in (replace(kept, configurations={}), replace(kept, replay="emulated replay")):
        names = [cell.name for cell in judge(other, POLICY, "0" * 64).coverage]
        assert not [name for name in names if "resolved" in name]
