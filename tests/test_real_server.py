"""One end-to-end run on real vLLM, and the defect; slow: `make test-slow`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from qualify.errors import ExitCode

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def qualify(*words: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "qualify", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=900)
    print(out, err)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def bundles(tmp_path_factory) -> Path:
    """Bundles of all runs here: arms with the same inputs are served once."""
    return tmp_path_factory.mktemp("bundles")


def newest(bundles: Path) -> Path:
    return max((path for path in bundles.iterdir()), key=lambda path: path.stat().st_mtime_ns)


def assert_judged_again_the_same(bundle: Path, code: ExitCode) -> None:
    again, out, _ = finish(qualify("judge", str(bundle)))
    assert again == code
    assert out.encode() == (bundle / "verdict.json").read_bytes()


def release_of_its_own(directory: Path, candidate: dict[str, str]) -> Path:
    """The embedded release with other settings for the candidate."""
    import yaml

    release = yaml.safe_load((ROOT / "images/ds4-cpu/release.yaml").read_text())
    release["serving"]["python"] = str(ROOT / ".venv-serving/bin/python")
    release["scenarios"] = [str(ROOT / "scenarios/mixed-contexts.yaml")]
    release["policy"] = str(ROOT / "images/ds4-cpu/policy.yaml")
    release["arms"]["candidate"] = {"environment": candidate}
    release["arms"]["control"]["caught_in"] = ["mixed-contexts"]
    path = directory / "release.yaml"
    path.write_text(yaml.safe_dump(release))
    return path


def test_embedded_release_is_qualified(bundles):
    code, out, err = finish(qualify("run", "images/ds4-cpu", "--bundles", str(bundles)))
    assert code == ExitCode.QUALIFIED
    for said in ("verdict: qualified", "CPU", "emulated replay", "synthetic", "was caught", "limitations"):
        assert said in out
    assert_judged_again_the_same(newest(bundles), ExitCode.QUALIFIED)

    code, _, err = finish(qualify("run", "images/ds4-cpu", "--bundles", str(bundles)))
    assert code == ExitCode.QUALIFIED
    assert "starting" not in err


def test_without_control_it_is_inconclusive(bundles):
    code, _, err = finish(qualify("run", "images/ds4-cpu", "--no-control", "--bundles", str(bundles)))
    assert code == ExitCode.INCONCLUSIVE
    assert "starting" not in err  # baseline and candidate are those of the run before
    assert_judged_again_the_same(newest(bundles), ExitCode.INCONCLUSIVE)


def test_packed_stride_is_rejected_and_row_0_is_not_hit(bundles):
    code, out, _ = finish(qualify("run", "images/ds4-packed-stride", "--bundles", str(bundles)))
    assert code == ExitCode.REJECTED
    verdict = json.loads((newest(bundles) / "verdict.json").read_bytes())
    rows = {
        row for finding in verdict["findings"] if finding["weight"] == "defect" for row in finding["rows"]
    }
    assert rows
    assert 0 not in rows
    assert "rows" in out
    assert_judged_again_the_same(newest(bundles), ExitCode.REJECTED)


def test_candidate_that_aborts_by_itself_is_rejected(bundles, tmp_path):
    release = release_of_its_own(
        tmp_path, {"DS4_FAULT": "abort-under-load", "DS4_FAULT_CONFIRM": "yes-break-this-server"}
    )
    code, out, _ = finish(qualify("run", str(release), "--bundles", str(bundles)))
    assert code == ExitCode.REJECTED
    assert "Aborted" in out or "SIGABRT" in out
    assert_judged_again_the_same(newest(bundles), ExitCode.REJECTED)


def engine_of_candidate(process: subprocess.Popen, bundles: Path) -> psutil.Process:
    """The engine process of the candidate, once it has begun to answer."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        assert process.poll() is None
        log = newest(bundles) / "arms/candidate/steps.jsonl"
        if log.exists() and log.stat().st_size > 5000:
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if next(iter(child.cmdline()), "").startswith("VLLM::EngineCore"):
                        return child
        time.sleep(0.2)
    raise AssertionError("the candidate did not answer in time")


def test_candidate_killed_from_outside_is_inconclusive(bundles, tmp_path):
    release = release_of_its_own(tmp_path, {"DS4_TEST_RUN": "killed"})
    process = qualify("run", str(release), "--bundles", str(bundles))
    engine_of_candidate(process, bundles).send_signal(signal.SIGKILL)
    code, out, _ = finish(process)
    assert code == ExitCode.INCONCLUSIVE
    assert "incomplete" in out
    assert_judged_again_the_same(newest(bundles), ExitCode.INCONCLUSIVE)


def test_interrupt_leaves_no_process(bundles, tmp_path):
    release = release_of_its_own(tmp_path, {"DS4_TEST_RUN": "interrupted"})
    process = qualify("run", str(release), "--bundles", str(bundles))
    engine_of_candidate(process, bundles)
    servers = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    code, out, err = finish(process)
    assert code == ExitCode.INTERRUPTED
    assert "Traceback" not in err
    assert "incomplete" in out
    _, alive = psutil.wait_procs(servers, timeout=10)
    assert not alive
    assert_judged_again_the_same(newest(bundles), ExitCode.INCONCLUSIVE)
