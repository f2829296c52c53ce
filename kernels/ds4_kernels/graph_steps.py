"""Records the engine steps of a GPU server and what replayed each: one CUDA graph, pieces of it, or nothing.

A replay is what was seen, not what was planned: `torch.cuda.CUDAGraph.replay` is counted while a step runs.
Which graph it was is what vLLM's dispatcher chose for the step. Works on vLLM's V1 model runner, which 0.26
takes for DeepSeek V4; `graph_steps_v2` does the same for the V2 runner. On another nothing is recorded, and
the log says so.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ds4_kernels.metadata_witness import MetadataSeen, MetadataWitness
from ds4_kernels.ranks import rank_log
from ds4_kernels.step_recorder import StepKind, StepRecorder, StepRow, count_decodes, rows_of, step_kind

logger = logging.getLogger("vllm.plugins.ds4_kernels")

NO_REPLAY = "none"
_DISPATCH = "_determine_batch_execution_and_padding"
_METADATA = "_build_attention_metadata"
_EXECUTE = "execute_model"


@dataclass
class GraphStep:
    """What is known of the step that runs.

    Attributes:
        mode: name of the graph mode that the dispatcher chose: ``FULL``, ``PIECEWISE`` or ``NONE``.
        padded: tokens of the step with the dispatcher's padding.
        kind: what its rows are; None while there is no metadata of a real step.
        rows: its requests in batch order, decodes first.
        replays: graphs that were replayed since it began.
        metadata: what lay in its C128A decode rows, where that is looked at.
    """

    mode: str = "NONE"
    padded: int = 0
    kind: StepKind | None = None
    rows: list[StepRow] = field(default_factory=list)
    replays: int = 0
    metadata: MetadataSeen | None = None

    @property
    def replay(self) -> str:
        """What replayed the step, as the step log names it."""
        return f"{self.mode} CUDA graph replay" if self.replays and self.mode != "NONE" else NO_REPLAY


class GraphStepWatcher:
    """Follows one model runner's steps and writes each down once it has run.

    The log is opened at the first step, so that processes which run no model leave it alone.
    """

    def __init__(self, path: Path, witness: MetadataWitness | None = None) -> None:
        """Take the step log's path, and who looks at the metadata, if anyone does."""
        self._path = path
        self._witness = witness
        self._recorder: StepRecorder | None = None
        self._step = GraphStep()
        self._rank = 0

    def begin(self, rank: int) -> None:
        """A step of this rank begins."""
        self._step, self._rank = GraphStep(), rank

    def dispatched(self, mode: str, padded: int) -> None:
        """The dispatcher has chosen a graph mode and the tokens to pad to."""
        self._step.mode, self._step.padded = mode, padded

    def built(self, kind: StepKind, rows: list[StepRow]) -> None:
        """The step's metadata is there."""
        self._step.kind, self._step.rows = kind, rows
        self._step.metadata = self._witness.take() if self._witness else None

    def replayed(self) -> None:
        """A CUDA graph was replayed."""
        self._step.replays += 1

    def end(self) -> None:
        """The step has run; steps without requests are none."""
        step = self._step
        if step.kind is None:
            return
        if self._recorder is None:
            self._recorder = StepRecorder(rank_log(self._path, self._rank), NO_REPLAY)
        replayed = step.replay != NO_REPLAY
        self._recorder.record(
            time.time(),
            step.kind,
            step.rows,
            len(step.rows) if replayed else 0,
            replay=step.replay,
            padded_rows=step.padded if replayed else None,
            metadata=step.metadata,
        )


def install_graph_steps(
    runner: type[Any], graph: type[Any], path: Path, witness: MetadataWitness | None = None
) -> bool:
    """Have the steps of a model runner recorded.

    Args:
        runner: vLLM's V1 ``GPUModelRunner``.
        graph: ``torch.cuda.CUDAGraph``.
        path: the step log of rank 0; others write beside it.
        witness: looks at the metadata of each step; None for nobody.

    Returns:
        False where the runner is none that this module knows; then nothing is changed.
    """
    if not all(hasattr(runner, name) for name in (_DISPATCH, _METADATA, _EXECUTE)):
        logger.warning("this vLLM's model runner is not known here: its steps are not recorded")
        return False
    watcher = GraphStepWatcher(path, witness)
    wrap(runner, _EXECUTE, lambda original: _execute(original, watcher))
    wrap(runner, _DISPATCH, lambda original: _dispatch(original, watcher))
    wrap(runner, _METADATA, lambda original: _build(original, watcher))
    count_replays(graph, watcher)
    return True


_Method = Callable[..., Any]


def wrap(owner: type[Any], name: str, around: Callable[[_Method], _Method]) -> None:
    """Put a method around another.

    Args:
        owner: the class.
        name: the method.
        around: makes the new method of the old one.
    """
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(around(original)))


def _execute(original: _Method, watcher: GraphStepWatcher) -> _Method:
    def execute_model(self: Any, *positional: Any, **named: Any) -> Any:
        watcher.begin(self.parallel_config.rank)
        result = original(self, *positional, **named)
        watcher.end()
        return result

    return execute_model


def _dispatch(original: _Method, watcher: GraphStepWatcher) -> _Method:
    def dispatch(self: Any, *positional: Any, **named: Any) -> Any:
        chosen = original(self, *positional, **named)
        watcher.dispatched(chosen[0].name, chosen[1].num_tokens)
        return chosen

    return dispatch


def _build(original: _Method, watcher: GraphStepWatcher) -> _Method:
    def build_attention_metadata(self: Any, *positional: Any, **named: Any) -> Any:
        built = original(self, *positional, **named)
        scheduled = named.get("num_scheduled_tokens")
        if scheduled is not None:  # else a dummy run
            rows = rows_of(self.input_batch, scheduled)
            # padding rows count as decodes, too
            decodes = min(count_decodes(built[0]), len(rows))
            watcher.built(step_kind(len(rows), decodes), rows)
        return built

    return build_attention_metadata


def count_replays(graph: type[Any], watcher: GraphStepWatcher) -> None:
    """Have a watcher told of each graph that is replayed.

    Args:
        graph: ``torch.cuda.CUDAGraph``.
        watcher: the watcher.
    """
    wrap(graph, "replay", lambda original: _replay(original, watcher))


def _replay(original: _Method, watcher: GraphStepWatcher) -> _Method:
    def replay(self: Any) -> Any:
        watcher.replayed()
        return original(self)

    return replay
