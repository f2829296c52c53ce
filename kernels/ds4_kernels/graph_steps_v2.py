"""Records the engine steps of a GPU server with vLLM's V2 model runner, as `graph_steps` does for V1.

Tested on the CPU against the sources of vLLM 0.32 and 0.33; not yet run on a GPU.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds4_kernels.graph_steps import GraphStepWatcher, count_replays, wrap
from ds4_kernels.step_recorder import StepKind, StepRow, step_kind

if TYPE_CHECKING:
    from ds4_kernels.metadata_witness import MetadataWitness

logger = logging.getLogger("vllm.plugins.ds4_kernels")

# Earlier releases carry an unfinished V2 runner that DeepSeek V4 is not served with.
_COMES_WITH = "vllm.v1.worker.gpu.sample.logits_processor"
_PREPARE = "prepare_inputs"
_EXECUTE = "execute_model"
_DESCRIPTOR = "batch_desc"


@dataclass(frozen=True)
class Prepared:
    """What the runner has prepared for one step.

    Attributes:
        mode: name of the graph mode that the dispatcher chose.
        padded: tokens of the step with padding.
        kind: what its rows are.
        rows: its requests in batch order.
    """

    mode: str
    padded: int
    kind: StepKind
    rows: list[StepRow]


def served_by_v2() -> bool:
    """Tell whether this vLLM has a V2 model runner that can serve DeepSeek V4 with forced tokens."""
    try:
        return importlib.util.find_spec(_COMES_WITH) is not None
    except ImportError:
        return False


def install_graph_steps_v2(
    runner: type[Any], graph: type[Any], path: Path, witness: MetadataWitness | None = None
) -> bool:
    """Have the steps of a V2 model runner recorded.

    Args:
        runner: vLLM's V2 ``GPUModelRunner``.
        graph: ``torch.cuda.CUDAGraph``.
        path: the step log of rank 0; others write beside it.
        witness: looks at the metadata of each step; None for nobody.

    Returns:
        False where the runner is none that this module knows; then nothing is changed.
    """
    prepare = getattr(runner, _PREPARE, None)
    known = prepare is not None and hasattr(runner, _EXECUTE)
    if not known or _DESCRIPTOR not in inspect.signature(prepare).parameters:
        logger.warning("this vLLM's V2 model runner is not known here: its steps are not recorded")
        return False
    watcher, steps = GraphStepWatcher(path, witness), _Steps()
    wrap(runner, _PREPARE, steps.prepare)
    wrap(runner, _EXECUTE, lambda original: steps.execute(original, watcher))
    count_replays(graph, watcher)
    return True


class _Steps:
    """Hands what is prepared for a step to the watcher once the step has run."""

    def __init__(self) -> None:
        self._prepared: Prepared | None = None

    def prepare(self, original: Any) -> Any:
        signature = inspect.signature(original)

        def prepare_inputs(runner: Any, *positional: Any, **named: Any) -> Any:
            batch = original(runner, *positional, **named)
            descriptor = signature.bind(runner, *positional, **named).arguments[_DESCRIPTOR]
            self._prepared = prepared(batch, descriptor)
            return batch

        return prepare_inputs

    def execute(self, original: Any, watcher: GraphStepWatcher) -> Any:
        def execute_model(runner: Any, *positional: Any, **named: Any) -> Any:
            self._prepared = None
            watcher.begin(runner.parallel_config.rank)
            result = original(runner, *positional, **named)
            if (step := self._prepared) is not None:  # else a dummy run, or nothing was scheduled
                watcher.dispatched(step.mode, step.padded)
                # only now has the metadata been built
                watcher.built(step.kind, step.rows)
            watcher.end()
            return result

        return execute_model


def prepared(batch: Any, descriptor: Any) -> Prepared:
    """Read what the runner has prepared.

    Args:
        batch: vLLM's ``InputBatch``.
        descriptor: vLLM's ``BatchExecutionDescriptor``.

    Returns:
        The step. A prompt's last single token runs as a decode and counts as one.
    """
    count = batch.num_reqs
    decodes = ~batch.is_prefilling_np[:count]
    if batch.prefill_runs_as_decode_np is not None:
        decodes = decodes | batch.prefill_runs_as_decode_np[:count]
    rows = [
        StepRow(request, row, int(batch.num_scheduled_tokens[row]), int(batch.num_computed_tokens_np[row]))
        for row, request in enumerate(batch.req_ids[:count])
    ]
    return Prepared(
        mode=descriptor.cg_mode.name,
        padded=int(descriptor.num_tokens),
        kind=step_kind(count, int(decodes.sum())),
        rows=rows,
    )
