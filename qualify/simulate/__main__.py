"""``python -m qualify.simulate``: judges recorded and synthetic runs and writes what comes out into docs/."""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from qualify.errors import QualifyError
from qualify.findings import Verdict
from qualify.simulate import report
from qualify.simulate.evidence import FOLDER, Case, as_expected, cases, judge_case, load_set
from qualify.simulate.recorded import recorded_world
from qualify.simulate.settings import beyond_settings, curve_settings, faulty_settings, right_settings
from qualify.simulate.trials import Outcome, Rate, Setting, simulate

FALSE_REJECTION, INCONCLUSIVE, DETECTION = 0.001, 0.02, 0.999
"""What must be reached: at most, at most, and at least for the packed stride."""

PACKED_EVERYWHERE = "packed stride on 100%"


def judge_recorded(root: Path) -> list[tuple[Case, Verdict]]:
    """Judges every recorded run.

    Args:
        root: The project's root.
    """
    judged = []
    for archive in sorted((root / FOLDER).glob("*.tar.xz")):
        recorded = load_set(archive)
        folder = archive.name.removesuffix(".tar.xz")
        judged += [(case, judge_case(case, recorded)) for case in cases(folder, recorded)]
    return judged


def run_all(settings: list[Setting], trials: int, pool: ProcessPoolExecutor, parts: int) -> list[Outcome]:
    """Simulates settings one after another, and prints each as it is known."""
    outcomes = []
    for setting in settings:
        outcome = simulate(setting, trials, pool, parts)
        rejected, open_ = report.percent(outcome.rejected), report.percent(outcome.inconclusive)
        print(f"{outcome.name}: rejected {rejected}, inconclusive {open_}", flush=True)
        outcomes.append(outcome)
    return outcomes


def main(arguments: list[str] | None = None) -> int:
    """Runs everything; returns 1 where a recorded run or a rate is not what it must be."""
    parser = argparse.ArgumentParser(prog="python -m qualify.simulate", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(), help="the project's root (default: here)")
    parser.add_argument("--runs", type=int, default=4000, help="simulated runs of each right setting")
    parser.add_argument("--faulty-runs", type=int, default=1000, help="of each faulty setting")
    parser.add_argument("--curve-runs", type=int, default=300, help="of each point of the curve")
    options = parser.parse_args(arguments)
    try:
        return _simulate(options.root, options.runs, options.faulty_runs, options.curve_runs)
    except QualifyError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)


def _simulate(root: Path, right_runs: int, faulty_runs: int, curve_runs: int) -> int:
    judged = judge_recorded(root)
    unexpected = [case for case, verdict in judged if not as_expected(case, verdict)]
    print(f"{len(judged)} recorded runs judged, {len(unexpected)} not as their truth demands")
    world = recorded_world(root)
    parts = os.cpu_count() or 1
    with ProcessPoolExecutor(parts) as pool:
        right = run_all(right_settings(world), right_runs, pool, parts)
        beyond = run_all(beyond_settings(world), faulty_runs, pool, parts)
        settings = faulty_settings(world)
        # A rate of 99.9% needs as many runs to be shown as one of 0.1%.
        faulty = [
            outcome
            for setting in settings
            for outcome in run_all([setting], _enough(setting, right_runs, faulty_runs), pool, parts)
        ]
        curve: dict[tuple[int, int, int], Rate] = {}
        for point, setting in curve_settings(world).items():
            curve[point] = simulate(setting, curve_runs, pool, parts).rejected
    sections = {
        "decision table": report.decision_section(),
        "recorded runs": report.evidence_table(judged),
        "right settings": report.outcome_table(right),
        "beyond the premise": report.outcome_table(beyond),
        "faulty settings": report.outcome_table(faulty),
        "smallest load": report.smallest_table(curve),
    }
    document = root / report.DOCUMENT
    document.write_text(report.insert(document.read_text(), sections))
    report.draw_rates([*right, *faulty], root / report.FIGURES / "rates.svg")
    report.draw_curve(curve, root / report.FIGURES / "sparse-fault.svg")
    return int(bool(unexpected) or not reached(right, faulty))


def _enough(setting: Setting, right_runs: int, faulty_runs: int) -> int:
    return max(right_runs, faulty_runs) if setting.name.startswith(PACKED_EVERYWHERE) else faulty_runs


def reached(right: list[Outcome], faulty: list[Outcome]) -> bool:
    """Says which rate is not what it must be.

    Args:
        right: Outcomes without a fault.
        faulty: Outcomes with one; those of the packed stride on all rows count.
    """
    missed = [
        f"{outcome.name}: {what} {report.percent(rate)}"
        for outcome in right
        for what, rate, most in (
            ("false rejection", outcome.rejected, FALSE_REJECTION),
            ("inconclusive", outcome.inconclusive, INCONCLUSIVE),
        )
        if rate.share > most
    ]
    missed += [
        f"{outcome.name}: detection {report.percent(outcome.rejected)}"
        for outcome in faulty
        if outcome.name.startswith(PACKED_EVERYWHERE) and outcome.rejected.share < DETECTION
    ]
    for line in missed:
        print(f"not reached: {line}")
    return not missed


if __name__ == "__main__":
    sys.exit(main())
