"""Compression of KV: partial states of single tokens, merged into one entry for every ``ratio`` tokens.

Each token leaves a key and a score in a state cache. The token that completes an entry takes the softmax of
the scores over the entry's window, channel by channel, and stores the weighted key. Ratio 4 overlaps: the
window is eight tokens, of which the first four use the first half of the channels and the last four the
second half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ds4_kernels.cpu.cache_layout import (
    INDEXER_DIM,
    LATENT_DIM,
    ROPE_DIM,
    apply_rope,
    store_indexer_keys,
    store_latents,
)


@dataclass(frozen=True)
class Compressed:
    """Entries that this step completes.

    Attributes:
        values: float32 ``[M, dim]``, normalised, rotary position applied.
        slots: int64 ``[M]``, where they belong.
    """

    values: torch.Tensor
    slots: torch.Tensor


def save_partial_states(
    keys: torch.Tensor,
    scores: torch.Tensor,
    position_bias: torch.Tensor,
    positions: torch.Tensor,
    state_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Store key and score of each token.

    Args:
        keys: float32 ``[T, W]``.
        scores: float32 ``[T, W]``.
        position_bias: float32 ``[ratio, W]``, added to the score by position within the entry.
        positions: int64 ``[>= T]``.
        state_cache: float32 ``[pages, page_tokens, 2 * W]``, changed in place.
        slot_mapping: int64 ``[T]``; negative = token leaves nothing.
    """
    written = (slot_mapping >= 0).nonzero().squeeze(-1)
    slots, page_tokens = slot_mapping[written], state_cache.shape[1]
    biased = scores[written].float() + position_bias[positions[written] % position_bias.shape[0]]
    state_cache[slots // page_tokens, slots % page_tokens] = torch.cat(
        [keys[written].float(), biased], dim=-1
    )


def compress(
    state_cache: torch.Tensor,
    window_slots: torch.Tensor,
    positions: torch.Tensor,
    entry_slots: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_eps: float,
    cos_sin: torch.Tensor,
    ratio: int,
    dim: int,
) -> Compressed:
    """Merge the partial states of every entry that this step completes.

    Args:
        state_cache: float32 ``[pages, page_tokens, 2 * W]``; ``W`` is ``dim`` or, overlapping, ``2 * dim``.
        window_slots: int64 ``[T, window]``, states of the window that ends with each token; -1 = none.
        positions: int64 ``[>= T]``.
        entry_slots: int64 ``[T]``; negative = token completes no entry.
        norm_weight: float32 ``[dim]``.
        norm_eps: epsilon of the RMS norm.
        cos_sin: float32 ``[positions, 64]``.
        ratio: tokens an entry.
        dim: values an entry.

    Returns:
        The completed entries; an entry's rotary position is that of its first token.
    """
    rows = entry_slots.shape[0]
    positions = positions[:rows]
    done = ((entry_slots >= 0) & ((positions + 1) % ratio == 0)).nonzero().squeeze(-1)
    slots, page_tokens = window_slots[done], state_cache.shape[1]
    present = (slots >= 0).unsqueeze(-1)
    slots = slots.clamp(min=0)
    keys, scores = state_cache[slots // page_tokens, slots % page_tokens].chunk(2, dim=-1)
    if window_slots.shape[1] > ratio:
        keys = torch.cat([keys[:, :ratio, :dim], keys[:, ratio:, dim:]], dim=1)
        scores = torch.cat([scores[:, :ratio, :dim], scores[:, ratio:, dim:]], dim=1)
    weights = torch.softmax(scores.masked_fill(~present, -torch.inf), dim=1)
    merged = (weights * keys.masked_fill(~present, 0.0)).sum(1)
    merged = merged * torch.rsqrt(merged.square().mean(-1, keepdim=True) + norm_eps) * norm_weight
    first_position = positions[done] // ratio * ratio
    rotated = apply_rope(merged[:, -ROPE_DIM:], cos_sin, first_position)
    return Compressed(torch.cat([merged[:, :-ROPE_DIM], rotated], dim=-1), entry_slots[done])


def _compress_into(
    dim: int, store: Callable[[torch.Tensor, torch.Tensor, int, torch.Tensor], None]
) -> Callable[..., None]:
    """An operator that runs :func:`compress` and stores what it gives.

    Args:
        dim: channels of one entry.
        store: writes entries into a cache: cache, slots, entries in one page, values.

    Returns:
        The operator. Its arguments are those of :func:`compress`, ``norm_weight`` being ``[dim]``, and before
        ``ratio`` the cache, uint8 ``[pages, bytes]``, changed in place, and the entries in one of its pages.
    """

    def run(
        state_cache: torch.Tensor,
        window_slots: torch.Tensor,
        positions: torch.Tensor,
        entry_slots: torch.Tensor,
        norm_weight: torch.Tensor,
        norm_eps: float,
        cos_sin: torch.Tensor,
        cache: torch.Tensor,
        page_entries: int,
        ratio: int,
    ) -> None:
        done = compress(
            state_cache, window_slots, positions, entry_slots, norm_weight, norm_eps, cos_sin, ratio, dim
        )
        store(cache, done.slots, page_entries, done.values)

    return run


compress_into_latents = _compress_into(LATENT_DIM, store_latents)
compress_into_indexer_keys = _compress_into(INDEXER_DIM, store_indexer_keys)
