"""Writes one JSON line for each engine step: which request was in which row, so that findings can name rows.

``DS4_STEP_LOG=/path/steps.jsonl`` switches it on. One line::

    {"step": 12, "time_s": 1700000000.1, "kind": "decode", "replay": "emulated replay", "rows_replayed": 2,
     "rows": [{"request_id": "cmpl-a-0-1f2e3d4c", "row": 0, "scheduled_tokens": 1, "computed_tokens": 150},
     ...]}

``replay`` is what the server replays with, or, on a GPU, what replayed this step; there ``padded_rows``
counts its graph's rows, padding included. ``row`` is the request's place in vLLM's batch after its
reordering, decodes first; in a decode step it is the row of the C128A decode metadata. ``computed_tokens``
counts tokens whose KV existed before the step. ``kind`` is ``decode`` (nothing but decode rows), ``prefill``
(none) or ``mixed``. Where ``DS4_STEP_METADATA=1`` asks for it, ``metadata`` says what lay in the C128A decode
rows. Rank 0 writes to the path itself, rank 1 to ``steps.rank1.jsonl`` beside it, and so on.

Request ids are vLLM's internal ones. In vLLM 0.32 a client names its request with the header
``X-Request-Id: a`` (which wins) or ``request_id`` in the body; the internal id is then
``cmpl-a-<prompt index>-<8 hexadecimal digits>`` for ``/v1/completions`` and ``chatcmpl-a-<8 digits>`` for
``/v1/chat/completions``. :func:`client_request_id` maps back.
"""

from __future__ import annotations

import enum
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ds4_kernels.metadata_witness import MetadataSeen

STEP_LOG_VARIABLE = "DS4_STEP_LOG"
_INTERNAL_ID = re.compile(r"(?:cmpl-(?P<completion>.+)-\d+|chatcmpl-(?P<chat>.+))-[0-9a-f]{8}")


class StepKind(enum.Enum):
    """What a step's rows are."""

    DECODE = "decode"
    PREFILL = "prefill"
    MIXED = "mixed"


@dataclass(frozen=True)
class StepRow:
    """One request in one step.

    Attributes:
        request_id: vLLM's internal id.
        row: place in the batch, decodes first.
        scheduled_tokens: tokens of this step.
        computed_tokens: tokens computed before it.
    """

    request_id: str
    row: int
    scheduled_tokens: int
    computed_tokens: int


def rows_of(batch: Any, scheduled: Mapping[str, int]) -> list[StepRow]:
    """List the requests of one step.

    Args:
        batch: the model runner's ``InputBatch``, whose first ``num_reqs`` requests are the step's.
        scheduled: tokens of this step by request.

    Returns:
        One entry for each of them, in batch order.
    """
    return [
        StepRow(request, row, scheduled[request], int(batch.num_computed_tokens_cpu[row]))
        for row, request in enumerate(batch.req_ids[: batch.num_reqs])
    ]


def step_kind(num_requests: int, num_decodes: int) -> StepKind:
    """Classify a step.

    Args:
        num_requests: requests in the batch.
        num_decodes: those that vLLM's metadata counts as decodes.

    Returns:
        The kind.
    """
    if num_decodes == num_requests:
        return StepKind.DECODE
    return StepKind.MIXED if num_decodes else StepKind.PREFILL


def count_decodes(metadata: Any) -> int:
    """Find how many requests vLLM's metadata counts as decodes.

    Args:
        metadata: attention metadata by layer.

    Returns:
        The number, as the sliding-window metadata of DeepSeek V4 gives it.

    Raises:
        LookupError: no layer's metadata has it.
    """
    for layer in metadata.values():
        if hasattr(layer, "num_decodes"):
            return int(layer.num_decodes)
    raise LookupError(
        "no attention metadata says how many requests are decodes: is this a DeepSeek V4 model?"
    )


def client_request_id(request_id: str) -> str:
    """Recover the ``X-Request-Id`` that a client sent.

    Args:
        request_id: vLLM's internal id.

    Returns:
        The client's id, or the internal one unchanged if it was not made by the OpenAI server.
    """
    match = _INTERNAL_ID.fullmatch(request_id)
    return (match["completion"] or match["chat"]) if match else request_id


def step_log_path(environment: Mapping[str, str]) -> Path | None:
    """Read ``DS4_STEP_LOG``.

    Args:
        environment: the process's environment.

    Returns:
        The file to append to, or None if steps are not recorded.

    Raises:
        ValueError: the file's folder does not exist, or the path is a folder.
    """
    value = environment.get(STEP_LOG_VARIABLE, "")
    if not value:
        return None
    path = Path(value)
    if not path.parent.is_dir() or path.is_dir():
        raise ValueError(f"{STEP_LOG_VARIABLE}={value}: expected a file in a folder that exists")
    return path


class StepRecorder:
    """Appends steps to a file, each by one ``write``, so that a killed process leaves whole lines."""

    def __init__(self, path: Path, replay: str) -> None:
        """Open the file.

        Args:
            path: file to append to.
            replay: ``emulated replay`` or ``none``, written in each line that is not given another.
        """
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._replay = replay
        self._steps = 0

    def record(
        self,
        time_s: float,
        kind: StepKind,
        rows: list[StepRow],
        rows_replayed: int,
        *,
        replay: str | None = None,
        padded_rows: int | None = None,
        metadata: MetadataSeen | None = None,
    ) -> None:
        """Append one step.

        Args:
            time_s: Unix time at the start of the step, in seconds.
            kind: what its rows are.
            rows: its requests in batch order.
            rows_replayed: decode rows whose C128A slots are read through the captured view.
            replay: what replayed this step.
            padded_rows: rows of the graph that replayed it, padding included.
            metadata: what lay in its C128A decode rows.

        Raises:
            OSError: the line could not be written whole.
        """
        line = {
            "step": self._steps,
            "time_s": time_s,
            "kind": kind.value,
            "replay": replay or self._replay,
            "rows_replayed": rows_replayed,
            "rows": [asdict(row) for row in rows],
        }
        if padded_rows is not None:
            line["padded_rows"] = padded_rows
        if metadata is not None:
            line["metadata"] = asdict(metadata)
        data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        if os.write(self._file, data) != len(data):
            raise OSError(f"step {self._steps} could not be written whole to the step log")
        self._steps += 1

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
