"""What a run takes over from earlier ones: whole evidence with its age, not what another attempt may mend."""

from __future__ import annotations

import datetime
import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from qualify.adoption import Adopted, adopt_arms, finished_bundle
from qualify.errors import EvidenceError, ExitCode
from qualify.evidence.bundle import STATEMENT, Bundle, RunState, seal
from qualify.evidence.digests import canonical_json
from qualify.evidence.signature import read_private_key, sign
from qualify.evidence.verification import check_age, verify_bundle
from qualify.findings import Result
from qualify.plan import Plan
from tests.imagebundles import Keys, image_bundle, judged
from tests.projects import Project
from tests.test_publish_command import qualify

OLD = "2026-10-02T10:00:00+00:00"
TODAY = datetime.date(2026, 12, 1)


def copied(served: Path, root: Path, **state: str) -> Bundle:
    """A copy of a bundle whose run was at another time, judged and sealed."""
    shutil.copytree(served, root)
    bundle = Bundle(root)
    bundle.write("run.json", replace(bundle.read("run.json", RunState), **state))
    return sealed(bundle)


def sealed(bundle: Bundle) -> Bundle:
    bundle.write_bytes("verdict.json", canonical_json(judged(bundle)))
    seal(bundle)
    return bundle


def without_a_request(bundle: Bundle, arm: str) -> Bundle:
    """As if a request of the arm's forced run had left nothing."""
    path = bundle.root / f"arms/{arm}/forced.run1.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join(lines[:-1])))
    return sealed(bundle)


def adopt(source: Bundle, root: Path) -> tuple[Adopted, Bundle, list[str]]:
    said: list[str] = []
    new = Bundle(root)
    root.mkdir()
    plan = source.read("plan.json", Plan)
    return adopt_arms(plan, new, source.root.parent, said.append), new, said


def finished(bundle: Bundle) -> tuple[object, list[str]]:
    said: list[str] = []
    found = finished_bundle(bundle.root.parent, bundle.read("plan.json", Plan), said.append)
    return found and found.verdict.result, said


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"date": OLD, "evidence_date": OLD}, OLD),
        ({"date": "2026-11-30T10:00:00+00:00", "evidence_date": OLD}, OLD),  # itself taken over
        ({"date": OLD, "evidence_date": ""}, OLD),  # from before it was kept
    ],
)
def test_adopted_arms_keep_the_age_of_their_evidence(
    served: Path, tmp_path: Path, state: dict[str, str], expected: str
) -> None:
    source = copied(served, tmp_path / "bundles/old", **state)
    adopted, _, said = adopt(source, tmp_path / "new")
    assert adopted.arms == tuple((arm, "old") for arm in ("baseline", "candidate", "control"))
    assert adopted.evidence_date == expected
    assert said[0] == f"baseline: unchanged, taken from old (served {expected[:10]})"


def test_a_new_date_does_not_make_old_evidence_young(project: Project, served: Path, tmp_path: Path) -> None:
    """End to end: signed, expired, and no less so after a change that serves nothing again."""
    keys = Keys(tmp_path)

    def verify(*days: str) -> tuple[int, str]:
        bundle = max((project.root / "bundles").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        outcome = qualify("verify", bundle, "--key", keys.public, "--max-age-days", *days)
        return outcome.code, outcome.err

    assert project.run("--key", str(keys.private)).code == ExitCode.QUALIFIED
    first = project.bundle()
    old = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=60)
    date = old.isoformat(timespec="seconds")
    state = Bundle(first).read("run.json", RunState)
    assert state.evidence_date == state.date
    Bundle(first).write("run.json", replace(state, date=date, evidence_date=date))
    keys.sign(sealed(Bundle(first)))
    assert verify("30")[0] == ExitCode.INCONCLUSIVE
    for _ in range(2):  # the second takes over what the first took over
        project.release.write_text(project.release.read_text() + "# reviewed\n")
        outcome = project.run("--key", str(keys.private))
        assert outcome.code == ExitCode.QUALIFIED, outcome.err
        assert ": starting" not in outcome.err
        code, said = verify("30")
        assert code == ExitCode.INCONCLUSIVE
        assert f"took over evidence of {date[:10]}, 60 days ago; 30 days are accepted" in said
        assert "--fresh" in said
        assert verify("61")[0] == ExitCode.QUALIFIED
        assert project.read("receipt.json")["evidence_date"] == date
    assert project.run("--key", str(keys.private), "--fresh").code == ExitCode.QUALIFIED
    assert verify("30")[0] == ExitCode.QUALIFIED


def test_statements_from_before_the_age_was_kept_hold_and_age_by_their_run(
    served: Path, tmp_path: Path
) -> None:
    keys = Keys(tmp_path)
    bundle = image_bundle(served, tmp_path / "bundle")
    state = json.loads((bundle.root / "run.json").read_bytes())
    del state["evidence_date"]
    bundle.write("run.json", state)
    keys.sign(sealed(bundle))
    envelope = json.loads((bundle.root / STATEMENT).read_bytes())
    statement = verify_bundle(bundle, keys.verifying).statement
    said = json.loads(canonical_json(statement))
    assert said["predicate"]["qualifyRun"].pop("evidenceDate") == ""
    bundle.write_bytes(STATEMENT, sign(canonical_json(said), read_private_key(keys.private)))
    assert json.loads((bundle.root / STATEMENT).read_bytes()) != envelope
    statement = verify_bundle(bundle, keys.verifying).statement
    check_age(statement, TODAY, 1)
    with pytest.raises(EvidenceError, match="the run was on 2026-12-01, 31 days ago"):
        check_age(statement, datetime.date(2027, 1, 1), 30)


def test_a_finished_bundle_is_final_where_another_run_would_add_nothing(served: Path, tmp_path: Path) -> None:
    bundle = copied(served, tmp_path / "bundles/it")
    assert finished(bundle) == (Result.QUALIFIED, [])
    policy = bundle.root / "inputs/policy.yaml"
    said = yaml.safe_load(policy.read_text())
    said["coverage"]["minimum_rows"] = 9  # there are 8, and there always will be
    policy.write_text(yaml.safe_dump(said))
    assert finished(sealed(bundle)) == (Result.INCONCLUSIVE, [])


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda root: (root / "notes.txt").write_text("looks fine"), "notes.txt: is not in the manifest"),
        (lambda root: (root / "arms/control/server.log").write_text(""), "was changed after"),
        (lambda root: (root / "inputs/policy.yaml").unlink(), "is missing"),
    ],
)
def test_a_damaged_bundle_does_not_stand_in_the_way(served: Path, tmp_path: Path, harm, why: str) -> None:
    bundle = copied(served, tmp_path / "bundles/it")
    harm(bundle.root)
    found, (said,) = finished(bundle)
    assert found is None
    assert said.startswith("it is complete, and is not used: ")
    assert why in said
    assert adopt(bundle, tmp_path / "new")[0] == Adopted()


def test_a_verdict_that_this_version_does_not_give_is_given_anew(served: Path, tmp_path: Path) -> None:
    bundle = copied(served, tmp_path / "bundles/it")
    bundle.write("verdict.json", replace(judged(bundle), reasons=("an earlier version said so",)))
    seal(bundle)
    found, (said,) = finished(bundle)
    assert found is None
    assert "is not the verdict that this version of qualify gives" in said
    assert len(adopt(bundle, tmp_path / "new")[0].arms) == 3  # the evidence is as good as ever


@pytest.mark.parametrize(("arm", "kept"), [("baseline", 0), ("candidate", 1), ("control", 2)])
def test_passing_trouble_is_served_again(served: Path, tmp_path: Path, arm: str, kept: int) -> None:
    bundle = without_a_request(copied(served, tmp_path / "bundles/it"), arm)
    found, said = finished(bundle)
    assert found is None
    assert said == [f"it is inconclusive; to be served again: {arm}"]
    adopted, new, _ = adopt(bundle, tmp_path / "new")
    assert len(adopted.arms) == kept
    assert len(list(new.root.glob("arms/*"))) == kept


def test_run_again_serves_again_what_passing_trouble_spoilt(project: Project) -> None:
    project.run()
    without_a_request(Bundle(project.bundle()), "control")
    outcome = project.run()
    assert outcome.code == ExitCode.QUALIFIED, outcome.err + outcome.out
    assert "candidate: unchanged, taken from" in outcome.err
    assert "control: starting" in outcome.err
    assert len(project.bundles()) == 2
