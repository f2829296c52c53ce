"""What runs reached, in Markdown: each run's coverage table, and the load of each of its scenarios."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qualify.compare.coverage.cells import counts, listed, said_of_contexts, said_of_hits
from qualify.compare.coverage.demands import decisive
from qualify.compare.coverage.load import ArmLoad, Load, arm_load
from qualify.compare.coverage.timeline import most_in_flight
from qualify.findings import CoverageCell, Verdict
from qualify.record import RunRecord, ScenarioExpectation
from qualify.reporting.coverage import full_name
from qualify.transcript import Arm, RunKey

_NONE = "-"


def coverage_document(runs: Sequence[tuple[str, RunRecord, Verdict]]) -> str:
    """Writes the tables of several runs.

    Args:
        runs: Name of each bundle, its record, and its verdict.

    Returns:
        A document in Markdown.
    """
    return "\n".join(
        [
            "# What runs reached",
            "",
            "Measured, not intended: from the server's step log, its log and metrics, the transcripts and",
            "the client's own clock. `qualify coverage BUNDLE...` prints this page. Where a required cell",
            "was missed, the verdict is inconclusive, or says so as a limitation where the policy allows it.",
            *(line for name, record, verdict in runs for line in _run(name, record, verdict)),
            "",
        ]
    )


def _run(name: str, record: RunRecord, verdict: Verdict) -> Iterator[str]:
    yield from ("", f"## {record.release}: {verdict.result}", "", f"Bundle `{name}`.", "")
    yield from _table(
        ("cell", "reached", "required", "how"),
        [(full_name(cell), cell.reached, _required(cell), cell.how) for cell in verdict.coverage],
    )
    arm = arm_load(record, Arm.CANDIDATE)
    if arm is None:
        return
    yield from ("", "By scenario, in the candidate's decisive run of each:", "")
    yield from _table(
        (
            "scenario",
            "in flight",
            "rows (decode steps)",
            "padded",
            "graphs (rows)",
            "active widths (entries)",
            "contexts in one step (tokens)",
            "found in the prefix cache",
            "preemptions",
            "prefill during decode",
        ),
        [_scenario(record, arm, scenario) for scenario in record.scenarios],
    )


def _required(cell: CoverageCell) -> str:
    return {True: f"{cell.required}: reached", False: f"{cell.required}: **missed**", None: ""}[
        cell.satisfied
    ]


def _scenario(record: RunRecord, arm: ArmLoad, scenario: ScenarioExpectation) -> tuple[str, ...]:
    decode = decisive(scenario)
    load: Load = arm.of(scenario=scenario.name, decode=decode)
    run = record.runs.get(RunKey(Arm.CANDIDATE, decode, 1))
    heads = [head for head in run.heads if head.scenario == scenario.name] if run else []
    return (
        scenario.name,
        str(most_in_flight(heads) or _NONE),
        ", ".join(f"{rows} ({steps})" for rows, steps in load.rows.items()) or _NONE,
        f"{load.padded} of {load.padded + load.exact}" if load.graphs else _NONE,
        listed(load.graphs) or _NONE,
        counts(load.widths) if load.widths else _NONE,
        said_of_contexts(load),
        said_of_hits(load),
        str(load.preemptions),
        str(load.prefill_beside),
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(_cell(text) for text in row)} |"


def _cell(text: str) -> str:
    """What a server or a scenario's file said cannot become markup."""
    return "".join(f"\\{letter}" if letter in "\\`|<>" else letter for letter in " ".join(text.split()))
