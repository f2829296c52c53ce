"""Findings about the image flow into the verdict; a look that was not taken is none that passed."""

import dataclasses

import pytest

from qualify.evidence.bundle import INSPECTIONS, Bundle
from qualify.evidence.recording import read_record
from qualify.findings import Finding, Result, Weight
from qualify.images.checks import PLUGIN, VLLM, bad, good
from qualify.judging import judge_bundle
from qualify.plan import Plan
from tests.projects import Project


@pytest.fixture
def bundle(project: Project) -> Bundle:
    """A qualified bundle, as if it were of a release whose image two rules must look at."""
    assert project.run().code == 0
    bundle = Bundle(project.bundle())
    (bundle.root / "manifest.json").unlink()
    plan = bundle.read("plan.json", Plan)
    bundle.write("plan.json", dataclasses.replace(plan, inspections=(PLUGIN, VLLM)))
    return bundle


def test_only_an_image_that_was_looked_at_is_qualified(bundle):
    assert judge_bundle(bundle).result is Result.INCONCLUSIVE
    assert {finding.rule for finding in read_record(bundle).inspections} == {PLUGIN, VLLM}

    bundle.write(INSPECTIONS, (good(PLUGIN, "active"),))
    verdict = judge_bundle(bundle)
    assert verdict.result is Result.INCONCLUSIVE
    assert any(VLLM in reason for reason in verdict.reasons)

    bundle.write(INSPECTIONS, (good(PLUGIN, "active"), good(VLLM, "0.32.0")))
    verdict = judge_bundle(bundle)
    assert verdict.result is Result.QUALIFIED
    assert PLUGIN in {finding.rule for finding in verdict.findings}

    bundle.write(INSPECTIONS, (bad(PLUGIN, "not there", advice="x"), good(VLLM, "0.32.0")))
    assert judge_bundle(bundle).result is Result.REJECTED

    missing = Finding(rule=PLUGIN, weight=Weight.UNTESTED, summary="no look")
    bundle.write(INSPECTIONS, (missing, good(VLLM, "0.32.0")))
    assert judge_bundle(bundle).result is Result.INCONCLUSIVE
