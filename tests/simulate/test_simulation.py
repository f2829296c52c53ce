from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from qualify.compare.arm import compare_arm
from qualify.compare.inspect import inspect_runs
from qualify.compare.rules import RUN, ask, section
from qualify.errors import UsageError
from qualify.findings import Result
from qualify.foreign.importing import lay_out as lay_out_foreign
from qualify.policy import DecisionPolicy
from qualify.simulate import report
from qualify.simulate.__main__ import main, reached
from qualify.simulate.evidence import FOLDER, load_set
from qualify.simulate.recorded import fault_sizes, recorded_world
from qualify.simulate.settings import DEFAULT, SMALL, curve_settings, faulty_settings, right_settings
from qualify.simulate.trials import Outcome, Rate, Setting, decide, run_trials, simulate
from qualify.simulate.worlds import (
    LASTING,
    MEAN_NOISE,
    NO_FAULT,
    PACKED,
    Batch,
    Fault,
    Load,
    Noise,
    Recorded,
    Synthetic,
)
from qualify.transcript import Arm

ROOT = Path(__file__).parents[2]
SIZES = np.array([0.1, 0.3])


@cache
def world() -> Recorded:
    return recorded_world(ROOT)


def rate_of(setting: Setting, result: Result, trials: int = 60) -> float:
    outcomes = [found for found, _ in run_trials(setting, range(trials))]
    return outcomes.count(result) / trials


def test_right_runs_pass_and_packed_ones_are_rejected() -> None:
    for source in (world(), Synthetic(Noise(), SIZES)):
        assert rate_of(Setting("", source, DEFAULT, NO_FAULT, 1), Result.QUALIFIED) == 1.0
        assert rate_of(Setting("", source, DEFAULT, PACKED, 2), Result.REJECTED) == 1.0


def test_noise_that_matters_nowhere_leaves_the_run_as_sharp_as_a_silent_one_and_right_servers_alone() -> None:
    """3% of 42 rows: 72% of the runs have a faulty row at all. Without noise each of them is found."""
    tiny, edge = Noise(factor=1e-4), Noise(factor=0.002, degrees=3, quiet=0.995)
    sparse, silent = Fault(share=0.03), Noise(factor=0.0)
    found = [
        rate_of(Setting("", Synthetic(noise, SIZES), DEFAULT, sparse, 4), Result.REJECTED)
        for noise in (silent, tiny)
    ]
    assert found[0] == found[1] > 0.5
    assert rate_of(Setting("", Synthetic(edge, SIZES), DEFAULT, NO_FAULT, 103), Result.QUALIFIED, 150) == 1.0


def test_a_control_that_does_not_show_makes_runs_inconclusive() -> None:
    deaf = Synthetic(Noise(), np.array([1e-6]))
    assert rate_of(Setting("", deaf, DEFAULT, NO_FAULT, 3), Result.INCONCLUSIVE) == 1.0


def test_trials_depend_on_seed_and_number_only() -> None:
    setting = Setting("", Synthetic(Noise(), np.array([0.02])), SMALL, Fault(share=0.75), 7)
    whole = run_trials(setting, range(20))
    assert run_trials(setting, range(10, 20)) == whole[10:]
    with ProcessPoolExecutor(2) as pool:
        outcome = simulate(setting, 20, pool, 2)
    assert outcome.rejected.hits == [result for result, _ in whole].count(Result.REJECTED)
    assert 0 < outcome.rejected.hits < 20


def test_simulated_noise_is_like_the_recorded_one() -> None:
    random = np.random.default_rng(1)
    trials = [Synthetic(Noise(), SIZES).trial(DEFAULT, NO_FAULT, random).candidate for _ in range(5)]
    made = np.concatenate([layout.distances[:, 0] for layout in trials])
    right = world().distances[:, :, 0, 1].ravel()
    right = right[right > 0]
    assert made.mean() == pytest.approx(MEAN_NOISE, rel=0.1)
    assert right.mean() == pytest.approx(made.mean(), rel=0.2)
    for quantile in (0.1, 0.5, 0.9, 0.99):
        assert np.quantile(made, quantile) == pytest.approx(np.quantile(right, quantile), rel=0.4)


def test_noise_models_do_what_they_say() -> None:
    random = np.random.default_rng(2)
    load = Load((Batch("some", 16, 8),))

    def floor(noise: Noise) -> np.ndarray:  # type: ignore[type-arg]
        return Synthetic(noise, SIZES).trial(load, NO_FAULT, random).candidate.distances[:, 0]

    usual = floor(Noise())
    assert floor(Noise(factor=10)).mean() == pytest.approx(10 * usual.mean(), rel=0.2)
    assert floor(Noise(degrees=3)).max() > 3 * usual.max()
    assert (floor(Noise(quiet=0.99)) == 0).mean() > 0.9
    jumps = floor(Noise(jumps=0.01))
    assert 0.005 < (jumps > 0.05).mean() < 0.05
    lasting = floor(Noise(lasting=0.01)).reshape(-1, 40)
    assert (lasting[:, -1] > LASTING / 2).mean() > (lasting[:, 0] > LASTING / 2).mean() + 0.1
    spread = floor(Noise(request_spread=1.0)).reshape(-1, 40).mean(axis=1)
    assert np.log(spread).std() > 2 * np.log(usual.reshape(-1, 40).mean(axis=1)).std()


def test_faults_hit_what_they_should() -> None:
    random = np.random.default_rng(3)
    load = Load((Batch("four", 4, 2), Batch("three", 3, 1)), tokens=17)
    hits = PACKED.hits(load, random)
    assert not hits[:, 0].any()
    assert [bool(row.any()) for row in hits] == [row > 0 for row in load.rows]
    last = Fault(last_row_only=True).hits(load, random).any(axis=1)
    assert list(np.flatnonzero(last)) == [3, 7, 10]
    sparse = Fault(row=2, every=8).hits(load, random)
    assert list(np.flatnonzero(sparse.any(axis=1))) == [2, 6, 10]
    assert set(sparse[2].sum(keepdims=True)) == {2}
    some = Fault(share=0.3).hits(Load((Batch("many", 101, 10),)), random).any(axis=1)
    assert 0.2 < some.sum() / 1000 < 0.4
    assert not NO_FAULT.hits(load, random).any()


def test_simulated_decision_is_the_judges_own() -> None:
    """The same evidence from a recorded run, through the judge and through the simulation's path."""
    recorded = load_set(ROOT / FOLDER / "h200-forced-c4-live.tar.xz")
    for mode, metadata in (("full-graph", "capacity"), ("full-graph", "packed-last-row")):
        files = {
            Arm.BASELINE: tuple(
                run
                for label, runs in recorded.items()
                if (label.mode, label.metadata) == ("eager", "capacity")
                for run in runs
                if run.decode == "forced"
            ),
            Arm.CANDIDATE: tuple(
                run
                for label, runs in recorded.items()
                if (label.mode, label.metadata, label.number) == (mode, metadata, 1)
                for run in runs
                if run.decode == "forced"
            ),
        }
        record = lay_out_foreign(files, run_date="2026-12-01")
        judged = compare_arm(record, DecisionPolicy(), Arm.CANDIDATE, inspect_runs(record))
        assert judged is not None
        whole = ask(section(RUN, judged.aligned.layout, {}), DecisionPolicy())
        mine = [item for item in judged.comparison.evidence if item.scope == RUN]
        assert sorted(mine, key=lambda item: item.rule) == sorted(whole, key=lambda item: item.rule)


def test_rates_have_exact_intervals() -> None:
    for hits, of in ((0, 4000), (3, 4000), (50, 60), (60, 60)):
        expected = stats.binomtest(hits, of).proportion_ci(0.95, method="exact")
        assert Rate(hits, of).interval == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert report.percent(Rate(1, 4)) == "25.00% (0.63% to 80.59%)"


def test_settings_are_distinct_and_cover_what_is_asked() -> None:
    right, faulty = right_settings(world()), faulty_settings(world())
    seeds = [setting.seed for setting in (*right, *faulty)]
    assert len(set(seeds)) == len(seeds)
    assert all(setting.fault.share == 0 for setting in right)
    names = " ".join(setting.name for setting in faulty)
    for share in ("1%", "3%", "10%", "50%", "100%"):
        assert f"on {share} of the rows" in names
    curve = curve_settings(world())
    assert {key[0] for key in curve} == set(report.BASELINES)
    assert len(fault_sizes(world())) > 500


def outcome(name: str, rejected: int, inconclusive: int = 0) -> Outcome:
    return Outcome(name, Rate(rejected, 1000), Rate(inconclusive, 1000), (("shift", rejected),))


def test_rates_that_are_not_reached_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    packed = outcome("packed stride on 100% of the rows", 1000)
    assert reached([outcome("right", 1)], [packed, outcome("other", 3)])
    assert not reached([outcome("right", 2)], [packed])
    assert not reached([outcome("right", 0, 21)], [packed])
    assert not reached([], [outcome("packed stride on 100% of the rows", 998)])
    assert capsys.readouterr().out.count("not reached") == 3


def test_tables_and_figures(tmp_path: Path) -> None:
    outcomes = [outcome("one", 1), outcome("two", 900, 100)]
    table = report.outcome_table(outcomes)
    assert "| two | 1000 | 90.00%" in table
    curve = {key: Rate(9 if key[2] < 6 else 10, 10) for key in curve_settings(world())}
    assert "| 2 | 32 | 6 |" in report.smallest_table(curve)
    never = {key: Rate(1, 10) for key in curve}
    assert "more than 16" in report.smallest_table(never)
    drawn = []
    for number in (1, 2):
        report.draw_rates(outcomes, tmp_path / f"rates{number}.svg")
        report.draw_curve(curve, tmp_path / f"curve{number}.svg")
        drawn.append([(tmp_path / f"{name}{number}.svg").read_bytes() for name in ("rates", "curve")])
    assert drawn[0] == drawn[1]


def test_sections_are_replaced_and_a_missing_one_is_refused() -> None:
    text = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n"
    assert report.insert(text, {"x": "new\n"}) == "a\n<!-- begin x -->\nnew\n<!-- end x -->\nb\n"
    with pytest.raises(UsageError, match="no section 'y'"):
        report.insert(text, {"y": ""})


def test_missing_evidence_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--root", str(tmp_path)]) == 2
    assert "h200-forced-c4-live.tar.xz" in capsys.readouterr().err


def test_decision_on_one_trial_names_the_rules() -> None:
    trial = world().trial(DEFAULT, PACKED, np.random.default_rng(5))
    result, rules = decide(trial, DecisionPolicy())
    assert result is Result.REJECTED
    assert {"shift", "tail", "extreme"} <= set(rules)
