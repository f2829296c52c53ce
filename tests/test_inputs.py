"""The three YAML files: what is refused, where, and all of it at once."""

import re
import shutil
from pathlib import Path

import pytest

from qualify.errors import UsageError
from qualify.inputs import read_inputs
from qualify.transcript import Arm

ROOT = Path(__file__).parents[1]


@pytest.fixture
def project(tmp_path):
    """A copy of the shipped release, with one scenario, that a test can spoil."""
    for name in ("images", "scenarios"):
        shutil.copytree(ROOT / name, tmp_path / name)
    release = tmp_path / RELEASE
    text = re.sub(r"caught_in: \[.*\]", "caught_in: [mixed-contexts]", release.read_text())
    one = "scenarios: [../../scenarios/mixed-contexts.yaml]\n"
    release.write_text(re.sub(r"scenarios:\n(  - .*\n)+", one, text))
    return tmp_path


def spoil(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, old
    path.write_text(text.replace(old, new, 1))


def refusal(location: Path, **options) -> str:
    with pytest.raises(UsageError) as caught:
        read_inputs(location, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("images/*/release.yaml")), ids=lambda path: path.parent.name
)
def test_shipped_releases_are_valid(path):
    # nobody here has its weights
    config = ROOT / "tests/data/deepseek-v4-flash.config.json" if path.parent.name == "ds4-flash" else None
    inputs = read_inputs(path, model_config=config)
    assert inputs.release.name == path.parent.name
    # only a candidate that carries a known defect itself may go without: it can be rejected, and nothing else
    known_bad = {"DS4_FAULT", "DS4_RELEASED_BUILDER"} & set(inputs.release.arms.candidate.environment)
    assert inputs.release.arms.control is not None or known_bad


def test_directory_and_file_are_the_same(project):
    directory = project / "images/ds4-cpu"
    assert read_inputs(directory) == read_inputs(directory / "release.yaml")


def test_control_can_be_left_out(project):
    inputs = read_inputs(project / "images/ds4-cpu", with_control=False)
    assert list(inputs.release.arms.configured()) == [Arm.BASELINE, Arm.CANDIDATE]


def test_every_problem_of_every_file_in_one_message(project):
    spoil(project / "scenarios/mixed-contexts.yaml", "deadline_s: 240", "deadline_s: 4min")
    spoil(project / "scenarios/mixed-contexts.yaml", "stream: true", "streem: true")
    spoil(project / "images/ds4-cpu/policy.yaml", "minimum_requests: 8", "minimum_requests: many")
    message = refusal(project / "images/ds4-cpu")
    assert "3 problems before anything was started" in message
    for said in (
        "deadline_s: Input should be a valid number",
        "unknown key 'streem'",
        "floor.minimum_requests: ",
    ):
        assert said in message


RELEASE, SCENARIO, POLICY = (
    "images/ds4-cpu/release.yaml",
    "scenarios/mixed-contexts.yaml",
    "images/ds4-cpu/policy.yaml",
)


@pytest.mark.parametrize(
    ("file", "old", "new", "line_with", "said"),
    [
        (RELEASE, "seed: 7}", "seed: 7, sed: 1}", "sed: 1", "unknown key"),
        (RELEASE, "max_model_len: 32768", "max_model_len: 32k", "32k", "valid integer"),
        (RELEASE, "max_model_len: 32768", "max_model_len: 16384", "16384", "stride defect cannot show"),
        (RELEASE, "caught_in: [mixed-contexts]", "caught_in: [x]", "caught_in", "not among the scenarios"),
        (RELEASE, "    caught_in: [mixed-contexts]\n", "", "  control:", "a fault needs caught_in"),
        (
            RELEASE,
            "baseline: {}",
            "baseline: {fault: a, caught_in: [b]}",
            "arms:",
            "baseline cannot have a fault",
        ),
        (RELEASE, 'VLLM_CPU_KVCACHE_SPACE: "1"', "HF_TOKEN: abc", "serving:", "looks like a secret"),
        (RELEASE, "dtype: float32", "port: 80", "serving:", "the harness sets them"),
        (RELEASE, "name: ds4-cpu", "name: DS4 CPU", "DS4 CPU", "pattern"),
        (RELEASE, "name: ds4-cpu", "name: a\nname: b", "name: b", "given twice"),
        (
            RELEASE,
            "seed: 7",
            "seed: !!python/object:os.system 1",
            "os.system",
            "tags are not taken",
        ),
        (
            RELEASE,
            "{kind: synthetic, seed: 7}",
            "{kind: local, path: nowhere}",
            "path: nowhere",
            "no model there",
        ),
        (RELEASE, "replay: emulated", "replay: [", "serving:", "while parsing a flow"),
        (SCENARIO, "top_logprobs: 20", "top_logprobs: 0", "top_logprobs: 0", "greater than or equal to 1"),
        (SCENARIO, "stream: true", "stream: false", "", "'held' needs stream: true"),
        (SCENARIO, "temperature: 0", "temperature: 0.7", "", "needs sampling.temperature 0"),
        (SCENARIO, "[free, forced]", "[forced]", "", "must include 'free'"),
        (SCENARIO, "kind: held", "kind: offsets", "kind: offsets", "needs offsets_s"),
        (
            SCENARIO,
            "kind: held",
            "kind: offsets, offsets_s: [0]",
            "name: pollute",
            "1 offsets_s for 4 requests",
        ),
        (SCENARIO, "kind: held", "kind: together, offsets_s: [0]", "kind: together", "no meaning"),
        (SCENARIO, "name: judge", "name: pollute", "", "phase names must differ"),
        (SCENARIO, "decode_tokens: 32", "decode_tokens: 32\n    judged: false", "", "no phase is judged"),
        (SCENARIO, "decode_tokens: 32", "decode_tokens: 0", "decode_tokens: 0", "greater than or equal to 1"),
        (SCENARIO, "150, 3000", "150, -3000", "-3000", "greater than or equal to 1"),
        (SCENARIO, "150, 3000", "150, 32740", "32740", "more than the release's max_model_len"),
        (POLICY, "replay_share: 0.95", "replay_share: 95", "replay_share", "less than or equal to 1"),
        (POLICY, "forced_runs: 2", "forced_runs: 1", "forced_runs", "greater than or equal to 2"),
    ],
)
def test_bad_input_is_refused_with_its_place(project, file, old, new, line_with, said):
    spoil(project / file, old, new)
    message = refusal(project / "images/ds4-cpu")
    lines = (project / file).read_text().splitlines()
    number = next(
        number for number, text in enumerate(lines, 1) if line_with in text and not text.startswith("#")
    )
    assert said in message
    assert Path(file).name in message
    assert not line_with or f"{Path(file).name}:{number}:" in message


@pytest.mark.parametrize(
    ("old", "new"), [("policy: policy.yaml", "policy: none.yaml"), ("contexts.yaml]", "none.yaml]")]
)
def test_missing_file_is_named(project, old, new):
    spoil(project / RELEASE, old, new)
    message = refusal(project / "images/ds4-cpu")
    assert "none.yaml: cannot be read" in message


def test_too_few_requests_for_the_policy(project):
    spoil(project / POLICY, "minimum_requests: 8", "minimum_requests: 9")
    assert "8 judged requests in one run, fewer than the policy's" in refusal(project / "images/ds4-cpu")


def test_free_scenarios_beside_forced_ones_are_refused(project):
    spoil(project / RELEASE, "contexts.yaml]", "contexts.yaml, ../../scenarios/length-order.yaml]")
    read_inputs(project / "images/ds4-cpu")
    path = project / "scenarios/length-order.yaml"
    path.write_text(path.read_text() + "decode: [free]\n")
    said = refusal(project / "images/ds4-cpu")
    assert (
        "decode [free] (length-order) beside forced decoding (mixed-contexts) would never be compared" in said
    )
    assert "release.yaml:" in said


def test_empty_file(project):
    (project / "images/ds4-cpu/release.yaml").write_text("# nothing\n")
    assert "release.yaml: is empty" in refusal(project / "images/ds4-cpu")


def test_expired_date_that_is_none(project):
    (project / "images/ds4-cpu/policy.yaml").write_text(
        "format: qualify/policy/1\nname: x\nwhen: 2026-13-45\n"
    )
    assert "not valid YAML" in refusal(project / "images/ds4-cpu")
