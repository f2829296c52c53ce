"""Attention over paged latents: the query side, the attention itself, and the way back from rotary positions.

Keys and values are the same 512 latent values. For query ``q`` of head ``h`` over its keys ``k_1 .. k_n``::

    p_i = exp(scale * q . k_i) / (exp(sink_h) + sum_j exp(scale * q . k_j)),   out = sum_i p_i k_i
"""

from __future__ import annotations

import enum
import functools
import os

import torch

from ds4_kernels.cpu import native
from ds4_kernels.cpu.cache_layout import (
    NOPE_DIM,
    ROPE_DIM,
    apply_rope,
    distinct_slots,
    load_latents,
    store_latents,
)

ATTENTION_VARIABLE = "DS4_CPU_ATTENTION"
ROWS_AT_ONCE = 32  # bounds the [rows, keys, 512] intermediate of the torch implementation


class AttentionChoice(enum.Enum):
    """Which implementation computes the attention."""

    C = "c"
    TORCH = "torch"


def chosen_attention() -> AttentionChoice:
    """Read ``DS4_CPU_ATTENTION`` (``c``, the default, or ``torch``).

    Raises:
        ValueError: another value.
    """
    value = os.environ.get(ATTENTION_VARIABLE, AttentionChoice.C.value)
    try:
        return AttentionChoice(value)
    except ValueError:
        names = ", ".join(choice.value for choice in AttentionChoice)
        raise ValueError(f"{ATTENTION_VARIABLE}={value!r}: expected one of {names}") from None


@functools.cache
def selected_attention() -> native.Attend:
    """Give the implementation that ``DS4_CPU_ATTENTION`` chose when it was first asked for.

    Raises:
        ValueError: the variable holds an unknown value.
        FileNotFoundError: C is chosen and not installed; there is no fallback, as arms must not differ.
    """
    if chosen_attention() is AttentionChoice.TORCH:
        return attend_torch
    return native.load(native.cpu_variant())


def describe_selection() -> str:
    """Name the selected attention for the log."""
    choice = chosen_attention()
    return f"C, {native.cpu_variant()}" if choice is AttentionChoice.C else "torch"


def attend_torch(
    queries: torch.Tensor, keys: torch.Tensor, indices: torch.Tensor, sinks: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend each query to its list of keys.

    Args:
        queries: float32 ``[T, H, D]``.
        keys: float32 ``[U, D]``.
        indices: int ``[T, K]``, rows of ``keys``; -1 = none.
        sinks: float32 ``[H]``.
        scale: factor on the scores.

    Returns:
        float32 ``[T, H, D]``; 0 for a query without keys.
    """
    out = torch.zeros_like(queries, dtype=torch.float32)
    if keys.shape[0] == 0 or indices.shape[1] == 0:
        return out
    sink = sinks.float().view(1, -1, 1)
    for start in range(0, queries.shape[0], ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        missing = (indices[rows] < 0).unsqueeze(1)
        picked = keys[indices[rows].clamp(min=0)].masked_fill(missing.transpose(1, 2), 0.0)
        scores = (queries[rows].float() @ picked.transpose(1, 2) * scale).masked_fill(missing, -torch.inf)
        highest = torch.maximum(scores.amax(-1, keepdim=True), sink)
        highest = highest.masked_fill(highest == -torch.inf, 0.0)
        weights = torch.exp(scores - highest)
        total = weights.sum(-1, keepdim=True) + torch.exp(sink - highest)
        out[rows] = (weights / total.masked_fill(total == 0, 1.0)) @ picked
    return out


def gather_keys(
    cache: torch.Tensor, slots: torch.Tensor, page_entries: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode each cache entry that any query uses, once.

    Args:
        cache: uint8 ``[pages, bytes]``, latent layout.
        slots: int64 ``[T, K]``; -1 = none.
        page_entries: entries in one page.

    Returns:
        float32 ``[U, 512]`` and, for each slot, its row in that, -1 = none: int64 ``[T, K]``.
    """
    used, rows = distinct_slots(slots, cache.shape[0] * page_entries)
    return load_latents(cache, used, page_entries), rows


def paged_attention(
    out: torch.Tensor,
    queries: torch.Tensor,
    window_cache: torch.Tensor,
    window_slots: torch.Tensor,
    window_page: int,
    compressed_cache: torch.Tensor,
    compressed_slots: torch.Tensor,
    compressed_page: int,
    sinks: torch.Tensor,
    scale: float,
) -> None:
    """Attend each query to its sliding window and to its compressed entries.

    Args:
        out: ``[>= T, H, 512]``, first ``T`` rows written.
        queries: float32 ``[>= T, H, 512]``.
        window_cache: uint8 ``[pages, bytes]``, latent layout.
        window_slots: int64 ``[T, window]``; -1 = none.
        window_page: entries in one page of the window cache.
        compressed_cache: uint8 ``[pages, bytes]``, latent layout.
        compressed_slots: int64 ``[T, K]``; -1 = none; ``K`` may be 0.
        compressed_page: entries in one page of the compressed cache.
        sinks: float32 ``[H]``.
        scale: factor on the scores.
    """
    keys, rows = gather_keys(window_cache, window_slots, window_page)
    if compressed_slots.shape[1]:
        more_keys, more_rows = gather_keys(compressed_cache, compressed_slots, compressed_page)
        rows = torch.cat([rows, torch.where(more_rows >= 0, more_rows + keys.shape[0], more_rows)], dim=1)
        keys = torch.cat([keys, more_keys])
    tokens = window_slots.shape[0]
    out[:tokens] = selected_attention()(queries[:tokens], keys, rows, sinks, scale).to(out.dtype)


def norm_queries_and_store_keys(
    queries: torch.Tensor,
    latents: torch.Tensor,
    positions: torch.Tensor,
    cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos_sin: torch.Tensor,
    padded_heads: int,
    eps: float,
    page_entries: int,
) -> torch.Tensor:
    """Normalise and rotate queries; rotate keys and store them in the window cache.

    Args:
        queries: float32 ``[T, H, 512]``.
        latents: float32 ``[T, 512]``, normalised keys.
        positions: int64 ``[>= T]``.
        cache: uint8 ``[pages, bytes]``, latent layout, changed in place.
        slot_mapping: int64 ``[<= T]``; negative = not stored.
        cos_sin: float32 ``[positions, 64]``.
        padded_heads: heads of the result, ``H`` or more.
        eps: epsilon of the RMS norm of each head (no weight).
        page_entries: entries in one page.

    Returns:
        ``[T, padded_heads, 512]`` in the type of ``queries``; heads past ``H`` are 0.
    """
    tokens, heads, dim = queries.shape
    normed = queries.float()
    normed = normed * torch.rsqrt(normed.square().mean(-1, keepdim=True) + eps)
    out = queries.new_zeros((tokens, padded_heads, dim))
    out[:, :heads, :NOPE_DIM] = normed[..., :NOPE_DIM].to(out.dtype)
    out[:, :heads, NOPE_DIM:] = apply_rope(normed[..., NOPE_DIM:], cos_sin, positions[:tokens]).to(out.dtype)

    stored = (slot_mapping >= 0).nonzero().squeeze(-1)
    keys = latents[stored].float()
    rotated = apply_rope(keys[:, NOPE_DIM:], cos_sin, positions[stored])
    store_latents(cache, slot_mapping[stored], page_entries, torch.cat([keys[:, :NOPE_DIM], rotated], dim=-1))
    return out


def undo_rope(
    outputs: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, rope_dim: int
) -> torch.Tensor:
    """Rotate attention outputs back by the query's position.

    The output is a weighted sum of keys rotated by their own positions; rotated back by the query's it
    depends on distances only, which is what the output projection expects.

    Args:
        outputs: float32 ``[T, H, 512]``.
        positions: int64 ``[>= T]``.
        cos_sin: float32 ``[positions, 64]``.
        rope_dim: rotated values at the end of each head; must be 64.

    Returns:
        float32 ``[T, H, 512]``.

    Raises:
        NotImplementedError: another ``rope_dim``.
    """
    if rope_dim != ROPE_DIM:
        raise NotImplementedError(f"rotary dimension {rope_dim}: only {ROPE_DIM} is implemented")
    rotated = apply_rope(
        outputs[..., -ROPE_DIM:].float(), cos_sin, positions[: outputs.shape[0]], inverse=True
    )
    return torch.cat([outputs[..., :-ROPE_DIM].float(), rotated], dim=-1)
