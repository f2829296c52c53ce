from __future__ import annotations

from dataclasses import replace

import pytest

from qualify.compare import coverage
from qualify.findings import NOT_MEASURED, SERVER_LOG, CoverageCell
from qualify.policy import CoveragePolicy
from qualify.record import GraphCounts
from qualify.serving.graphs import read_graphs
from qualify.transcript import Arm
from tests.judgefactory import World, build

PREFIX = "(APIServer pid=7) INFO 12-01 10:36:51 [cuda_graph.py:123] "
TABLE = [
    "**CUDAGraph Config Settings:**",
    "",
    "- Mode: FULL_DECODE_ONLY",
    "- Capture sizes: [1, 2, 4]",
    "| Unpadded Tokens | Padded Tokens | Num Paddings | Runtime Mode | Count |",
    "|-----------------|---------------|--------------|--------------|-------|",
    "| 3               | 4             | 1            | FULL         | 34    |",
    "| 8192            | 8192          | 0            | NONE         | 5     |",
]


def log(*tables: list[str]) -> list[str]:
    return ["ready", *[PREFIX + line for table in tables for line in table], "Engine 000: Running: 1 reqs"]


def test_tables_of_a_log_are_added_up() -> None:
    later = [*TABLE[:-2], "| 4 | 4 | 0 | FULL | 6 |", "| 1 | 1 | 0 | FULL | 2 |"]
    assert read_graphs(log(TABLE, later)) == GraphCounts(
        mode="FULL_DECODE_ONLY",
        captured=(1, 2, 4),
        steps=(("FULL", 1, 2), ("FULL", 4, 40), ("NONE", 8192, 5)),
    )


def test_a_server_without_graphs_says_so() -> None:
    table = ["- Mode: NONE", "- Capture sizes: []", "| 8 | 8 | 0 | NONE | 34 |"]
    assert read_graphs(log(table)) == GraphCounts(mode="NONE", captured=(), steps=(("NONE", 8, 34),))


def test_a_log_without_a_table_says_nothing() -> None:
    assert read_graphs(log()) is None
    assert read_graphs(["| 8 | 8 | 0 | FULL | 34 |"]) is None


def cells(**graphs: GraphCounts) -> dict[str, CoverageCell]:
    record = replace(
        build(World(scenarios={"eight": 8}, tokens=6)),
        graphs={Arm(name): counts for name, counts in graphs.items()},
    )
    measured = coverage.measure(record, CoveragePolicy(), 48)
    return {cell.name: cell for cell in measured if cell.how == SERVER_LOG}


def test_what_the_servers_counted_is_told() -> None:
    counts = read_graphs(log(TABLE))
    assert counts is not None
    found = cells(candidate=counts)
    cell = found["steps of the candidate as its server counted them"]
    assert found["steps of the baseline as its server counted them"].reached == NOT_MEASURED
    assert (
        cell.reached
        == "at least 34 FULL, 5 NONE (FULL graphs of 4 rows); mode FULL_DECODE_ONLY, 3 sizes captured"
    )
    assert cell.satisfied is None


@pytest.mark.parametrize(
    ("steps", "satisfied"),
    [((("NONE", 8, 34),), True), ((("NONE", 8, 34), ("PIECEWISE", 8, 1)), False), ((), False)],
)
def test_a_baseline_that_counted_a_graph_is_short(
    steps: tuple[tuple[str, int, int], ...], satisfied: bool
) -> None:
    found = cells(baseline=GraphCounts(mode="NONE", captured=(), steps=steps))
    cell = found["steps of the baseline as its server counted them"]
    assert cell.satisfied is satisfied
    assert bool(coverage.shortfalls((cell,), CoveragePolicy())) is not satisfied


def test_servers_that_say_nothing_add_nothing() -> None:
    assert cells() == {}
