"""Servers of two ranks: graph evidence from each, and a fault on one rank that is named."""

import pytest

from qualify.errors import ExitCode
from tests.projects import assert_judged_again_the_same


@pytest.fixture
def two_ranks(project):
    project.change(
        serving__arguments__tensor_parallel_size=None,
        serving__environment__FAKE_RANKS="2",
        serving__environment__DS4_STEP_METADATA="1",
        arms__control__environment__DS4_FAULT_RANKS="1",
    )
    text = project.release.read_text().replace("tensor_parallel_size: null", "tensor-parallel-size: 2")
    project.release.write_text(text)
    return project


def findings(project, rule: str) -> list[dict]:
    return [found for found in project.read("verdict.json")["findings"] if found["rule"] == rule]


def cells(project) -> dict[str, tuple[str, bool | None]]:
    return {
        cell["name"]: (cell["reached"], cell["satisfied"])
        for cell in project.read("verdict.json")["coverage"]
    }


def test_right_ranks_are_qualified_and_the_control_names_its_rank(two_ranks):
    outcome = two_ranks.run()
    assert outcome.code == ExitCode.QUALIFIED, outcome.out
    reached, satisfied = cells(two_ranks)["decode steps of the candidate that were replays, rank 1"]
    assert satisfied, reached
    assert cells(two_ranks)["replays in the baseline, rank 1"][1]
    (note,) = findings(two_ranks, "metadata")
    assert (note["weight"], note["arm"]) == ("note", "control")
    assert note["summary"].startswith("Rank 1 of the control")
    assert not findings(two_ranks, "ranks")
    assert_judged_again_the_same(two_ranks)


def test_a_wrong_rank_of_the_candidate_is_rejected_and_named(two_ranks):
    two_ranks.misbehave("candidate", "rank-wrong")
    outcome = two_ranks.run("--no-control")
    assert outcome.code == ExitCode.REJECTED, outcome.out
    (found,) = findings(two_ranks, "metadata")
    assert found["weight"] == "defect"
    assert found["summary"].startswith("Rank 1 of the candidate had wrong C128A rows")
    assert 0 not in found["rows"]
    assert found["rows"]
    assert findings(two_ranks, "divergence")
    assert_judged_again_the_same(two_ranks)


@pytest.mark.parametrize(
    ("arm", "misbehaviour", "said"),
    [
        ("candidate", "rank-silent", "decode steps of the candidate that were replays, rank 1: not measured"),
        ("candidate", "rank-eager", "decode steps of the candidate that were replays, rank 1: 0 of"),
        ("candidate", "rank-apart", "Rank 1 of the candidate did not run the steps of rank 0: step 0"),
        ("baseline", "rank-silent", "replays in the baseline, rank 1: not measured"),
    ],
)
def test_a_rank_without_evidence_is_inconclusive(two_ranks, arm, misbehaviour, said):
    two_ranks.misbehave(arm, misbehaviour)
    outcome = two_ranks.run()
    assert outcome.code == ExitCode.INCONCLUSIVE, outcome.out
    assert said in " ".join(outcome.out.split())
    assert_judged_again_the_same(two_ranks)
