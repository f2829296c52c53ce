"""The indexer of C4A layers: it scores compressed entries for each query and keeps the best 512."""

from __future__ import annotations

import torch

from ds4_kernels.cpu.cache_layout import (
    ROPE_DIM,
    apply_rope,
    distinct_slots,
    load_indexer_keys,
    power_of_two,
    quantize,
)

ROWS_AT_ONCE = 64  # bounds the [rows, heads, entries] intermediate


def quantize_queries(
    positions: torch.Tensor,
    queries: torch.Tensor,
    cos_sin: torch.Tensor,
    quantized_out: torch.Tensor,
    weights: torch.Tensor,
    softmax_scale: float,
    head_scale: float,
    weights_out: torch.Tensor,
) -> None:
    """Rotate and quantise the indexer's queries; fold their scales into the head weights.

    Args:
        positions: int64 ``[>= T]``.
        queries: float32 ``[T, H, 128]``.
        cos_sin: float32 ``[positions, 64]``.
        quantized_out: FP8 ``[T, H, 128]``, written.
        weights: float32 ``[T, H]``.
        softmax_scale: factor on the logits.
        head_scale: factor on the logits.
        weights_out: float32 ``[T, H]``, written: weight * query scale * both factors.
    """
    rotated = apply_rope(queries[..., -ROPE_DIM:], cos_sin, positions[: queries.shape[0]])
    quantized, exponent = quantize(torch.cat([queries[..., :-ROPE_DIM], rotated], dim=-1))
    quantized_out.copy_(quantized)
    weights_out.copy_(weights * power_of_two(exponent.squeeze(-1)) * softmax_scale * head_scale)


def paged_logits(
    queries: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    page_entries: int,
    max_entries: int,
) -> torch.Tensor:
    """Score the compressed entries that each query may see.

    Args:
        queries: FP8 ``[T, H, 128]``.
        cache: uint8 ``[pages, bytes]``, indexer layout.
        weights: float32 ``[T, H]``.
        seq_lens: int ``[T]``, entries that each query may see.
        page_table: int32 ``[T, pages per request]``.
        page_entries: entries in one page.
        max_entries: width of the result.

    Returns:
        float32 ``[T, max_entries]``: ``sum_h weight[h] * max(0, query[h] . key[j])``, -inf from ``seq_lens``
        on.
    """
    lens = seq_lens.view(-1).long()
    logits = torch.full((queries.shape[0], max_entries), -torch.inf)
    for start in range(0, queries.shape[0], ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        longest = int(lens[rows].max())
        if longest <= 0:
            continue
        pages = page_table[rows, : -(-longest // page_entries)].long()
        used, place = distinct_slots(pages, cache.shape[0])
        slots = used.unsqueeze(1) * page_entries + torch.arange(page_entries)
        keys = load_indexer_keys(cache, slots.flatten(), page_entries)
        products = torch.relu(queries[rows].float() @ keys.t())
        scores = torch.bmm(weights[rows].unsqueeze(1), products).view(-1, used.shape[0], page_entries)
        seen = scores[torch.arange(scores.shape[0]).unsqueeze(1), place].flatten(1)[:, :longest]
        beyond = torch.arange(longest) >= lens[rows].unsqueeze(1)
        logits[rows, :longest] = seen.masked_fill(beyond, -torch.inf)
    return logits


def topk_entries(
    logits: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    entries_out: torch.Tensor,
    page_entries: int,
    raw_entries_out: torch.Tensor | None,
) -> None:
    """Keep each query's best entries.

    Args:
        logits: float32 ``[T, N]``.
        seq_lens: int ``[T]``, entries that each query may see.
        page_table: not used: vLLM's CPU path resolves slots later (part of the operator's interface).
        entries_out: int32 ``[T, K]``, written: entry numbers, -1 after the last.
        page_entries: not used.
        raw_entries_out: int32 ``[T, K]``, written likewise if given.

    A query that sees at most ``K`` entries gets all of them in rising order.
    """
    rows, wanted = entries_out.shape
    lens = seq_lens.view(-1, 1).long()
    kept = min(wanted, logits.shape[1])
    columns = torch.arange(kept).expand(rows, kept)
    best = torch.where(lens <= wanted, columns, torch.topk(logits, kept, dim=1).indices)
    entries_out.fill_(-1)
    entries_out[:, :kept] = best.masked_fill(columns >= lens, -1).to(torch.int32)
    if raw_entries_out is not None:
        raw_entries_out.copy_(entries_out)
