"""Steps of a GPU server are recorded with what replayed them; the model runner is invented."""

import enum
import json
from types import SimpleNamespace

import pytest
from ds4_kernels.graph_steps import install_graph_steps


class Mode(enum.Enum):
    NONE = 0
    PIECEWISE = 1
    FULL = 2


class World:
    """A model runner and a graph class, made anew for each test: installing changes them."""

    def __init__(self, rank: int = 0) -> None:
        world = self

        class Graph:
            def replay(self) -> str:
                return "replayed"

        class Runner:
            parallel_config = SimpleNamespace(rank=rank)
            input_batch = SimpleNamespace(
                req_ids=["cmpl-a-0-00000000", "cmpl-b-0-00000000", "gone"],
                num_reqs=2,
                num_computed_tokens_cpu=[150, 300, 0],
            )

            def _determine_batch_execution_and_padding(self, **_):
                return world.mode, SimpleNamespace(num_tokens=4)

            def _build_attention_metadata(self, num_scheduled_tokens=None):
                return {"swa": SimpleNamespace(num_decodes=world.decodes)}, None

            def execute_model(self, scheduled, *, replays=0):
                self._determine_batch_execution_and_padding()
                self._build_attention_metadata(num_scheduled_tokens=scheduled)
                for _ in range(replays):
                    assert Graph().replay() == "replayed"
                return "output"

        self.mode, self.decodes, self.runner, self.graph = Mode.NONE, 2, Runner, Graph


SCHEDULED = {"cmpl-a-0-00000000": 1, "cmpl-b-0-00000000": 1}


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


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
    world.mode, world.decodes = mode, 4  # of four rows, two are padding
    assert install_graph_steps(world.runner, world.graph, path)
    assert world.runner().execute_model(SCHEDULED, replays=replays) == "output"
    (line,) = lines(path)
    assert (line["replay"], line["rows_replayed"], line.get("padded_rows")) == (replay, rows, padded)
    assert (line["step"], line["kind"]) == (0, "decode")
    assert line["rows"][1] == {
        "request_id": "cmpl-b-0-00000000",
        "row": 1,
        "scheduled_tokens": 1,
        "computed_tokens": 300,
    }


def test_replays_are_counted_for_each_step(tmp_path):
    world, path = World(), tmp_path / "steps.jsonl"
    world.mode = Mode.FULL
    install_graph_steps(world.runner, world.graph, path)
    for replays in (1, 0):
        world.runner().execute_model(SCHEDULED, replays=replays)
    assert [line["rows_replayed"] for line in lines(path)] == [2, 0]


def test_mixed_steps_and_dummy_runs(tmp_path):
    world, path = World(), tmp_path / "steps.jsonl"
    world.decodes = 1
    install_graph_steps(world.runner, world.graph, path)
    runner = world.runner()
    runner._determine_batch_execution_and_padding()  # a dummy run, as at capture
    runner._build_attention_metadata()
    world.graph().replay()
    assert not path.exists()
    runner.execute_model(None)
    assert not path.exists()
    runner.execute_model(SCHEDULED)
    assert [line["kind"] for line in lines(path)] == ["mixed"]


def test_each_rank_writes_its_own_log(tmp_path):
    world, path = World(rank=1), tmp_path / "steps.jsonl"
    install_graph_steps(world.runner, world.graph, path)
    assert world.runner().execute_model(SCHEDULED) == "output"
    assert not path.exists()
    assert len(lines(tmp_path / "steps.rank1.jsonl")) == 1


def test_an_unknown_runner_is_left_alone(tmp_path, caplog):
    other = type("Runner", (), {"execute_model": lambda self: "output"})
    graph = World().graph
    before = graph.replay
    assert not install_graph_steps(other, graph, tmp_path / "steps.jsonl")
    assert "not recorded" in caplog.text
    assert graph.replay is before
