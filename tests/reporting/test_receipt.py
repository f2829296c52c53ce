"""Receipt, export and comparison: true of the bundle, valid by their published schemas; the schemas fresh."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import msgspec
import pytest

from qualify.errors import EvidenceError
from qualify.evidence.bundle import seal
from qualify.evidence.digests import canonical_json, sha256_file
from qualify.findings import Finding, Weight
from qualify.images.identity import IMAGE_FILE, LOCK_FILE, SBOM_FILE, ImageIdentity
from qualify.images.lock import FORMAT, LockedBase, ReleaseLock
from qualify.images.sources import LockedSource
from qualify.reporting.compare_runs import compare_runs
from qualify.reporting.export import make_export
from qualify.reporting.material import Material
from qualify.reporting.receipt import make_receipt
from qualify.reporting.schemas import SCHEMAS, write_schemas
from qualify.transcript import Arm
from tests.reporting.html.material import material
from tests.reporting.judged import RECORDS, good, rejected

PUBLISHED = Path(__file__).parents[2] / "reports/schemas"
DIGEST = "sha256:" + "d" * 64
SOURCE = LockedSource(
    name="kernels", commit="c" * 40, date="2026-12-01", tree="e" * 40, modified=False, content_sha256="f" * 64
)


def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((PUBLISHED / f"{name}.schema.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def told(value: object) -> dict:
    return json.loads(canonical_json(value))


def sealed(name: str, root: Path) -> Material:
    made = material(RECORDS[name](), root)
    made.bundle.write("plan.json", made.plan)
    seal(made.bundle)
    return made


def with_image(made: Material) -> Material:
    lock = ReleaseLock(
        format=FORMAT,
        release="test",
        base=LockedBase(name="base", digest=DIGEST, from_registry=True),
        recipe_sha256="1" * 64,
        vllm="0.26.0",
        python="/usr/bin/python3",
        contracts=(),
        wheels=(),
        sources=(SOURCE,),
        patches=(),
        overlay_sha256="",
        composition=None,
        cuda_architectures=(),
        left_out=(),
        arguments=(),
    )
    image = ImageIdentity(digest=DIGEST, reference=f"host/name@{DIGEST}", build_id=lock.build_id, labels=())
    made.bundle.write(LOCK_FILE, lock)
    made.bundle.write(IMAGE_FILE, image)
    packages = [
        {"name": "vllm", "version": "0.26.0", "purl": "pkg:pypi/vllm@0.26.0"},
        {"name": "bash", "version": "5", "purl": "pkg:deb/debian/bash@5"},
    ]
    made.bundle.write(SBOM_FILE, {"components": packages})
    seal(made.bundle)
    return made


def test_the_published_schemas_are_fresh(tmp_path: Path) -> None:
    write_schemas(tmp_path)
    assert {path.name for path in PUBLISHED.glob("*.json")} == set(SCHEMAS)
    for name in SCHEMAS:
        assert (tmp_path / name).read_text() == (PUBLISHED / name).read_text(), (
            "run: python -m qualify.reporting.schemas"
        )


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_field_of_a_schema_is_described(name: str) -> None:
    schema = json.loads((PUBLISHED / name).read_bytes())
    for kind, definition in schema["$defs"].items():
        for field, properties in definition.get("properties", {}).items():
            assert properties.get("description"), f"{kind}.{field}"


@pytest.mark.parametrize("name", RECORDS)
def test_receipt_and_verdict_are_valid(name: str, tmp_path: Path) -> None:
    made = material(RECORDS[name](), tmp_path)
    receipt = told(make_receipt(made.plan, made.state, made.verdict))
    validator("receipt").validate(receipt)
    validator("verdict").validate(told(made.verdict))
    assert receipt["status"] == ("incomplete" if name == "machinery" else "complete")
    assert sum(receipt["counts"].values()) == len(made.verdict.findings)


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "pass"},
        {"verdict": None},
        {"plan_id": "abc"},
        {"format": "qualify/receipt/1"},
        {"limitations": "none"},
        {"extra": 1},
    ],
)
def test_the_schema_refuses_another_receipt(change: dict, tmp_path: Path) -> None:
    made = material(good(), tmp_path)
    receipt = told(make_receipt(made.plan, made.state, made.verdict))
    assert not validator("receipt").is_valid(receipt | change)


def test_the_schema_refuses_a_receipt_with_a_field_missing(tmp_path: Path) -> None:
    made = material(good(), tmp_path)
    receipt = told(make_receipt(made.plan, made.state, made.verdict))
    for field in receipt:
        assert not validator("receipt").is_valid(
            {name: item for name, item in receipt.items() if name != field}
        )


@pytest.mark.parametrize("name", RECORDS)
def test_the_export_is_valid_and_makes_nothing_up(name: str, tmp_path: Path) -> None:
    made = sealed(name, tmp_path)
    export = told(make_export(made))
    validator("export").validate(export)
    assert export["status"] == made.verdict.result
    nulls = {field for field, value in export.items() if value is None}
    assert nulls == set(export["unknown"])
    assert nulls == {"image", "image_id", "registry_digest", "gpu_ids", "source_trees", "runtime_packages"}
    assert export["artifacts"] == [{"path": "plan.json", "sha256": sha256_file(tmp_path / "plan.json")}]
    compared = export["runtime_validation"]["positions_compared"]
    assert (compared is None) is (name == "machinery")


def test_the_export_of_an_image_tells_what_the_bundle_holds(tmp_path: Path) -> None:
    export = told(make_export(with_image(sealed("good", tmp_path))))
    validator("export").validate(export)
    assert export["image"] == f"host/name@{DIGEST}"
    assert export["registry_digest"] == DIGEST
    assert export["image_id"] is None
    assert export["source_trees"]["kernels"]["tree"] == "e" * 40
    assert export["runtime_packages"] == {"vllm": "0.26.0"}
    assert set(export["unknown"]) == {"image_id", "gpu_ids"}


@pytest.mark.parametrize(
    ("samples", "expected"),
    [("0\n0\n0\n", ["0"]), ("1\n1\n", ["1"]), ("0\n1\n0\n1\n", None), ("", None)],
)
def test_graphics_cards_are_named_only_where_it_is_known_which_served(
    samples: str, expected: list[str] | None, tmp_path: Path
) -> None:
    made = material(good(), tmp_path)
    made.bundle.write_bytes("arms/candidate/gpu.csv", f"index\n{samples}".encode())
    seal(made.bundle)
    export = told(make_export(made))
    assert export["gpu_ids"] == expected
    assert ("gpu_ids" in export["unknown"]) is (expected is None)


def test_a_bundle_that_was_never_sealed_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="never sealed"):
        make_export(material(good(), tmp_path))


def test_a_comparison_shows_what_changed(tmp_path: Path) -> None:
    first, second = material(good(), tmp_path / "one"), material(rejected(), tmp_path / "two")
    second = replace(second, verdict=replace(second.verdict, scope=(("device", "other"),)))
    found = compare_runs(first, second)
    validator("run-comparison").validate(told(found))
    changed = {(row.section, row.name): (row.first, row.second) for row in found.rows if row.changed}
    assert changed["run", "verdict"] == ("qualified", "rejected")
    assert changed["scope", "device"] == ("test", "other")
    assert ("candidate", "positions that differ") in changed or (
        "candidate",
        "mean to nearest baseline, nats",
    ) in changed
    assert ("floor", "mean of the farthest two, nats") not in changed
    assert not any(section == "policy" for section, _ in changed)
    assert found.findings_gone == ()
    (new,) = found.findings_new
    assert new.startswith("defect: The candidate differs")
    back = compare_runs(second, first)
    assert (back.findings_gone, back.findings_new) == (found.findings_new, found.findings_gone)


def found_against(rule: str, summary: str, evidence: tuple[str, ...] = ()) -> Finding:
    return Finding(rule=rule, weight=Weight.UNTESTED, summary=summary, arm=Arm.CANDIDATE, evidence=evidence)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            found_against("coverage", "Coverage: rows in one decode step: 4, required at least 8."),
            found_against("coverage", "Coverage: preemptions: 0, required at least 1."),
        ),
        (
            found_against("log", "The candidate's log shows CUDA errors (2 lines), the baseline's none."),
            found_against("log", "The candidate's log shows tracebacks (2 lines), the baseline's none."),
        ),
        (
            found_against("request-failed", "3 requests of run candidate.forced.run1 ended (timeout)."),
            found_against("request-failed", "3 requests of run candidate.forced.run1 ended (refused)."),
        ),
        (
            found_against("warnings", "The candidate warns 9 times of one thing.", ("slow",)),
            found_against("warnings", "The candidate warns 9 times of one thing.", ("deprecated",)),
        ),
    ],
    ids=lambda item: item.rule,
)
def test_a_new_finding_is_not_hidden_by_another_of_its_rule(
    before: Finding, after: Finding, tmp_path: Path
) -> None:
    made = material(good(), tmp_path)

    def with_findings(*found: Finding) -> Material:
        return replace(made, verdict=replace(made.verdict, findings=(*made.verdict.findings, *found)))

    changed = compare_runs(with_findings(before), with_findings(after))
    assert changed.findings_gone == (f"untested: {before.summary}",)
    assert changed.findings_new == (f"untested: {after.summary}",)
    both = compare_runs(with_findings(before), with_findings(before, after))
    assert (both.findings_gone, both.findings_new) == ((), changed.findings_new)
    figures = replace(before, summary=before.summary.translate(str.maketrans("1234", "5678")))
    same = compare_runs(with_findings(before), with_findings(figures))
    assert same.findings_gone == same.findings_new == ()


def test_a_comparison_says_which_arms_were_taken_over(tmp_path: Path) -> None:
    first, second = material(good(), tmp_path), material(good(), tmp_path)
    second = replace(second, state=replace(second.state, adopted=(("baseline", "earlier"),)))
    changed = [row for row in compare_runs(first, second).rows if row.changed]
    assert [(row.section, row.name, row.second) for row in changed] == [
        ("run", "baseline taken over from", "earlier")
    ]


def test_a_comparison_tells_the_speed_of_each_arm(tmp_path: Path) -> None:
    found = compare_runs(material(good(), tmp_path), material(good(), tmp_path))
    assert not [row for row in found.rows if row.changed]
    speed = {row.name: row.first for row in found.rows if row.section == "speed"}
    # each run takes 2 s; a request is sent every millisecond and has its first token after 1 s
    assert speed["baseline: wall time driven, s"] == pytest.approx(3 * 2.0)
    assert speed["candidate: tokens/s"] == pytest.approx(11 * 32 / 2.0)
    assert speed["candidate: time to first token, median, s"] == pytest.approx(1.0, abs=0.01)
    assert speed["candidate: start, s"] is None


def test_a_comparison_shows_a_changed_policy(tmp_path: Path) -> None:
    first, second = material(good(), tmp_path), material(good(), tmp_path)
    coverage = second.policy.coverage.model_copy(update={"minimum_rows": 16})
    second = replace(second, policy=second.policy.model_copy(update={"coverage": coverage}))
    changed = [row for row in compare_runs(first, second).rows if row.changed]
    assert [(row.name, row.first, row.second) for row in changed] == [("coverage.minimum_rows", 2, 16)]


def test_runs_of_which_nothing_is_known_can_be_compared(tmp_path: Path) -> None:
    made = material(RECORDS["machinery"](), tmp_path)
    found = compare_runs(material(good(), tmp_path), made)
    validator("run-comparison").validate(told(found))
    assert len(found.findings_new) > 5
    assert msgspec.json.decode(canonical_json(found), type=type(found)) == found
