"""A fault that the image's kernels do not know is refused before anything is served from it."""

import io
import json
import os
import subprocess
import sys

import pytest
from rich.console import Console

from qualify import pipeline
from qualify.errors import UsageError
from qualify.images.inspection import known_faults
from qualify.images.stage import Composed, Inspected
from qualify.pipeline import Options, run_release
from qualify.reporting.progress import Progress
from tests.images.factory import IDENTITY, LOCK
from tests.projects import ROOT


def test_the_image_says_which_faults_its_kernels_know(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "qualify/images/probes/contents.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "kernels")},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    kept = {"exit_code": 0, "stdout": done.stdout, "stderr": "", "out_of_memory": False}
    (tmp_path / "contents.json").write_text(json.dumps(kept))
    assert "cpu-emulated" in known_faults(tmp_path)["packed-stride"]


@pytest.mark.parametrize("said", ["{}", "no JSON"])
def test_an_image_that_does_not_say_is_left_to_the_control(tmp_path, said):
    assert known_faults(tmp_path) == {}
    (tmp_path / "contents.json").write_text(
        json.dumps({"exit_code": 0, "stdout": said, "stderr": "", "out_of_memory": False})
    )
    assert known_faults(tmp_path) == {}


def test_unknown_fault_is_refused_with_its_line_and_nothing_is_served(project, monkeypatch):
    composed = Composed(lock=LOCK, identity=IDENTITY, stride_fix="")
    monkeypatch.setattr(pipeline, "compose_for", lambda *_, **__: composed)
    inspected = Inspected(good=True, faults={"stale-tail": ("cpu-emulated",)})
    monkeypatch.setattr(pipeline, "inspect_stage", lambda *_, **__: inspected)
    monkeypatch.setattr(pipeline, "serve_arms", lambda *_: pytest.fail("something was served"))
    options = Options(
        release=project.release, bundles=project.root / "bundles", models=project.root / "models"
    )
    with pytest.raises(UsageError, match=r"release\.yaml:\d+:5: fault 'packed-stride' is unknown"):
        run_release(options, Progress(), Console(file=io.StringIO()))
    state = project.read("run.json")
    assert state["status"] == "incomplete"
    assert "fault 'packed-stride' is unknown" in state["why"]
