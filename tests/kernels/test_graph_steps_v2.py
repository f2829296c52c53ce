"""Steps of the V2 model runner are recorded; the runner is invented, in the shape of vLLM's sources."""

import ast
import enum
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import vllm
from ds4_kernels.graph_steps_v2 import install_graph_steps_v2, prepared, served_by_v2

WORKER = Path(vllm.__file__).parent / "v1/worker/gpu"


class Mode(enum.Enum):
    NONE = 0
    PIECEWISE = 1
    FULL = 2


def batch(prefilling=(False, False), as_decode=None, computed=(150, 300), scheduled=(1, 1)):
    return SimpleNamespace(
        req_ids=["cmpl-a-0-00000000", "cmpl-b-0-00000000"],
        num_reqs=2,
        num_scheduled_tokens=np.array(scheduled),
        num_computed_tokens_np=np.array(computed),
        is_prefilling_np=np.array(prefilling),
        prefill_runs_as_decode_np=None if as_decode is None else np.array(as_decode),
    )


class World:
    """A model runner and a graph class, made anew for each test: installing changes them."""

    def __init__(self) -> None:
        world = self

        class Graph:
            def replay(self) -> str:
                return "replayed"

        class Runner:
            parallel_config = SimpleNamespace(rank=0)

            def prepare_inputs(self, scheduler_output, batch_req_state, batch_desc, num_active_loras):
                return world.batch

            def execute_model(self, scheduler_output, *, dummy_run=False, replays=0):
                if not dummy_run:
                    desc = SimpleNamespace(cg_mode=world.mode, num_tokens=4)
                    assert self.prepare_inputs(scheduler_output, None, desc, 0) is world.batch
                for _ in range(replays):
                    assert Graph().replay() == "replayed"
                return "output"

        self.mode, self.batch, self.runner, self.graph = Mode.NONE, batch(), Runner, Graph


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(
    ("mode", "replays", "replay", "rows", "padded"),
    [
        (Mode.FULL, 1, "FULL CUDA graph replay", 2, 4),
        (Mode.PIECEWISE, 7, "PIECEWISE CUDA graph replay", 2, 4),
        (Mode.NONE, 0, "none", 0, None),
        (Mode.FULL, 0, "none", 0, None),  # planned, and not seen
    ],
)
def test_a_step_says_what_replayed_it(tmp_path, mode, replays, replay, rows, padded):
    world, path = World(), tmp_path / "steps.jsonl"
    world.mode = mode
    assert install_graph_steps_v2(world.runner, world.graph, path)
    assert world.runner().execute_model(None, replays=replays) == "output"
    (line,) = lines(path)
    assert (line["replay"], line["rows_replayed"], line.get("padded_rows")) == (replay, rows, padded)
    assert (line["step"], line["kind"]) == (0, "decode")
    assert line["rows"][1] == {
        "request_id": "cmpl-b-0-00000000",
        "row": 1,
        "scheduled_tokens": 1,
        "computed_tokens": 300,
    }


def test_dummy_runs_are_no_steps(tmp_path):
    world, path = World(), tmp_path / "steps.jsonl"
    install_graph_steps_v2(world.runner, world.graph, path)
    runner = world.runner()
    runner.execute_model(None)
    runner.execute_model(None, dummy_run=True, replays=1)
    runner.execute_model(None)
    assert [line["step"] for line in lines(path)] == [0, 1]


@pytest.mark.parametrize(
    ("prefilling", "as_decode", "kind"),
    [
        ((False, False), None, "decode"),
        ((False, True), None, "mixed"),
        ((True, True), None, "prefill"),
        ((False, True), (False, True), "decode"),  # the last token of a prompt
        ((False, True), (False, False), "mixed"),
    ],
)
def test_kinds_of_steps(prefilling, as_decode, kind):
    desc = SimpleNamespace(cg_mode=Mode.NONE, num_tokens=2)
    assert prepared(batch(prefilling, as_decode), desc).kind.value == kind


def test_another_runner_is_left_alone(tmp_path):
    class Runner:
        def execute_model(self):
            return None

        def prepare_inputs(self, scheduled):
            return None

    before = dict(vars(Runner))
    assert not install_graph_steps_v2(Runner, World().graph, tmp_path / "steps.jsonl")
    assert dict(vars(Runner)) == before


def test_installed_vllm_has_what_is_wrapped():
    assert served_by_v2()
    runner = _class(WORKER / "model_runner.py", "GPUModelRunner")
    methods = {item.name: item for item in runner.body if isinstance(item, ast.FunctionDef)}
    assert "batch_desc" in [argument.arg for argument in methods["prepare_inputs"].args.args]
    dummy = ast.unparse(methods["execute_model"])
    assert "if not dummy_run" in dummy
    assert "self.prepare_inputs(" in dummy
    fields = {
        item.target.id
        for item in _class(WORKER / "input_batch.py", "InputBatch").body
        if isinstance(item, ast.AnnAssign)
    }
    assert set(vars(batch())) <= fields
    descriptor = _class(WORKER / "cudagraph_utils.py", "BatchExecutionDescriptor")
    assert {"cg_mode", "num_tokens"} <= {
        item.target.id for item in descriptor.body if isinstance(item, ast.AnnAssign)
    }


def _class(path: Path, name: str) -> ast.ClassDef:
    tree = ast.parse(path.read_text())
    return next(item for item in tree.body if isinstance(item, ast.ClassDef) and item.name == name)


def test_releases_before_it_are_told(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert not served_by_v2()
