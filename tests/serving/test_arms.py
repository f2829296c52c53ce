from __future__ import annotations

from pathlib import Path

import pytest

from qualify.release import Release
from qualify.serving.arms import ServerCommand, command_line, inherited_environment, server_command
from qualify.transcript import Arm

ROOT = Path("/project")


def release(**changes: object) -> Release:
    fields: dict[str, object] = {
        "format": "qualify/release/1",
        "name": "small",
        "description": "for tests",
        "replay": "emulated",
        "model": {"kind": "synthetic", "seed": 1},
        "serving": {
            "served_name": "ds4",
            "max_model_len": 32768,
            "max_num_seqs": 16,
            "arguments": {"dtype": "float32", "enforce-eager": True},
            "environment": {"SHARED": "1", "OVERRIDDEN": "shared"},
        },
        "arms": {
            "baseline": {"environment": {"OVERRIDDEN": "baseline"}},
            "candidate": {"arguments": {"enforce-eager": False}, "environment": {"OVERRIDDEN": "candidate"}},
            "control": {
                "environment": {"CONTROL": "1"},
                "fault": "packed-stride",
                "caught_in": ("mixed",),
            },
        },
        "scenarios": ("scenarios/mixed.yaml",),
        "policy": "policy.yaml",
    }
    return Release.model_validate(fields | changes)


def command(arm: Arm, of: Release | None = None) -> ServerCommand:
    return server_command(
        of or release(),
        arm,
        model=Path("/models/tiny"),
        home=ROOT,
        arm_directory=Path("/bundle/arms") / arm,
        port=8123,
    )


def test_command_line_is_complete() -> None:
    assert command(Arm.BASELINE).argv == (
        "/project/.venv-serving/bin/python",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model=/models/tiny",
        "--served-model-name=ds4",
        "--host=127.0.0.1",
        "--port=8123",
        "--max-model-len=32768",
        "--max-num-seqs=16",
        "--logits-processors=ds4_kernels.forced_tokens:ForcedTokens",
        "--dtype=float32",
        "--enforce-eager",
    )
    assert command(Arm.BASELINE).cwd == ROOT


def test_control_is_the_candidate_with_its_fault() -> None:
    candidate, control = command(Arm.CANDIDATE), command(Arm.CONTROL)
    assert control.argv == candidate.argv
    own = {"CONTROL", "DS4_FAULT", "DS4_FAULT_CONFIRM", "DS4_STEP_LOG"}
    assert {pair for pair in control.environment if pair[0] not in own} == {
        pair for pair in candidate.environment if pair[0] != "DS4_STEP_LOG"
    }
    variables = dict(control.environment)
    assert variables["DS4_FAULT"] == "packed-stride"
    assert variables["DS4_FAULT_CONFIRM"] == "yes-break-this-server"
    assert variables["OVERRIDDEN"] == "candidate"


def test_arms_without_a_fault_have_none() -> None:
    for arm in (Arm.BASELINE, Arm.CANDIDATE):
        assert not {name for name, _ in command(arm).environment} & {"DS4_FAULT", "DS4_FAULT_CONFIRM"}


def test_own_settings_override_shared_ones() -> None:
    assert dict(command(Arm.BASELINE).environment)["OVERRIDDEN"] == "baseline"
    assert "--no-enforce-eager" in command(Arm.CANDIDATE).argv
    assert "--enforce-eager" not in command(Arm.CANDIDATE).argv


def test_replay_is_told_apart_by_arm() -> None:
    replays = {arm: dict(command(arm).environment).get("DS4_REPLAY") for arm in Arm}
    assert replays == {Arm.BASELINE: "fresh", Arm.CANDIDATE: "emulated", Arm.CONTROL: "emulated"}
    graphs = release(replay="full-graph")
    assert all("DS4_REPLAY" not in dict(command(arm, graphs).environment) for arm in Arm)


def test_each_arm_logs_its_steps_into_its_own_directory() -> None:
    logs = {dict(command(arm).environment)["DS4_STEP_LOG"] for arm in Arm}
    assert logs == {f"/bundle/arms/{arm}/steps.jsonl" for arm in Arm}


@pytest.mark.parametrize("name", ["PYTHONFAULTHANDLER", "HF_HUB_OFFLINE", "VLLM_SERVER_DEV_MODE"])
def test_needed_variables_are_always_there(name: str) -> None:
    assert all(dict(command(arm).environment)[name] == "1" for arm in Arm)


def test_absolute_interpreter_is_taken_as_it_is() -> None:
    serving = release().serving.model_copy(update={"python": "/opt/venv/bin/python"})
    assert command(Arm.BASELINE, release(serving=serving)).argv[0] == "/opt/venv/bin/python"


def test_values_that_start_with_a_dash_stay_values() -> None:
    assert command_line({"a": "-b", "c": 1.5, "d": True, "e": False}) == (
        "--a=-b",
        "--c=1.5",
        "--d",
        "--no-e",
    )


def test_shell_line_is_quoted() -> None:
    line = ServerCommand(("python", "a b"), (("X", "1 2"),), ROOT).shell
    assert line == "X='1 2' python 'a b'"


def test_harness_environment_is_not_handed_on() -> None:
    own = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "0",
        "TRITON_CACHE_DIR": "/cache",
        "HF_TOKEN": "x",
        "PYTHONPATH": "/y",
        "HTTP_PROXY": "z",
    }
    assert inherited_environment(own) == {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "0",
        "TRITON_CACHE_DIR": "/cache",
    }


def test_server_that_speculates_is_asked_to_force_nothing() -> None:
    serving = release().serving
    speculating = serving.model_copy(update={"arguments": {"speculative-config": "{}"}})
    argv = command(Arm.CANDIDATE, release().model_copy(update={"serving": speculating})).argv
    assert "--speculative-config={}" in argv
    assert not any(word.startswith("--logits-processors") for word in argv)
