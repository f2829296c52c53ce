"""An inspection is taken over only where it would be made the same way."""

from dataclasses import replace

import pytest

from qualify.evidence.bundle import Bundle, RunState, seal
from qualify.images import stage
from qualify.images.checks import expected_rules, good
from qualify.images.stage import Composed, Inspected, inspect_stage
from tests.images.factory import IDENTITY, lock

LOCK = lock(contracts=("vllm", "triton"))
COMPOSED = Composed(lock=LOCK, identity=IDENTITY, stride_fix="")
CARD = (("card 0", "NVIDIA H200, 580.1"),)
HERE = (("cores", "2"), ("memory", "24 GiB"))


@pytest.fixture
def inspected(tmp_path, monkeypatch):
    """Inspects into one bundle after another; tells how many GPUs each inspection that was made had."""
    made, bundles = [], []

    def inspect_image(client, lock, image, bundle, *, gpus, stride_fix, say):
        made.append(gpus)
        (bundle / "sbom.cdx.json").write_text("{}")
        return tuple(good(rule, "fine") for rule in expected_rules(lock))

    def inspect(gpus, machine=HERE, cards=()):
        monkeypatch.setattr(stage, "machine", lambda: machine)
        monkeypatch.setattr(stage, "graphics_cards", lambda: cards)
        bundle = Bundle(tmp_path / str(len(bundles)))
        bundle.root.mkdir()
        bundle.write(
            "run.json", RunState(status="complete", why="", date="2026-12-01", harness="0", plan_id="0")
        )
        inspect_stage(COMPOSED, bundle, bundles, gpus=gpus, say=lambda line: None)
        seal(bundle)
        bundles.insert(0, bundle)
        return made

    monkeypatch.setattr(stage, "inspect_image", inspect_image)
    monkeypatch.setattr(stage, "connect", lambda: None)
    return inspect


def test_the_same_is_not_inspected_again(inspected):
    inspected(None)
    assert inspected(None, machine=(("cores", "2"), ("memory", "32 GiB")), cards=CARD) == [None]
    assert inspected(1, cards=CARD) == [None, 1]
    assert inspected(1, cards=CARD) == [None, 1]


@pytest.mark.parametrize(
    "changed",
    [
        {"gpus": 1, "cards": CARD},
        {"gpus": None, "machine": (("cores", "4"), ("memory", "24 GiB"))},
    ],
)
def test_inspection_without_a_gpu_or_elsewhere_is_made_again(inspected, changed):
    inspected(None)
    assert inspected(**changed) == [None, changed["gpus"]]


def test_inspection_on_another_card_or_driver_is_made_again(inspected):
    inspected(1, cards=CARD)
    assert inspected(1, cards=(("card 0", "NVIDIA H200, 581.0"),)) == [1, 1]


def test_inspection_that_is_taken_over_keeps_its_date(inspected, tmp_path):
    inspected(None)
    earlier = Bundle(tmp_path / "0")
    for name in ("1", "2"):  # the second takes over what the first took over
        bundle = Bundle(tmp_path / name)
        found = inspect_stage(COMPOSED, bundle, [earlier], gpus=None, say=lambda line: None)
        assert found == Inspected(good=True, evidence_date="2026-12-01")
        state = RunState(status="complete", why="", date="2026-12-24", harness="0", plan_id="0")
        bundle.write("run.json", replace(state, evidence_date=found.evidence_date))
        seal(bundle)
        earlier = bundle
