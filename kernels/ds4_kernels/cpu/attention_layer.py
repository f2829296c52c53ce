"""The methods of vLLM's CPU attention layer that this package replaces; emulated replay's metadata.

- ``forward_mqa``: takes the C128A slots of decode rows from the metadata where a builder put them, as GPU
  layers do; vLLM's CPU layer never looks there.
- ``_o_proj`` and the packing of its weight: in float32. vLLM computes it in bfloat16 with a kernel that only
  some CPUs have, which also would make equal servers differ by bfloat16 steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.models.deepseek_v4.cpu.cpu_mla import (
    DeepseekV4CPUFlashMLAMetadataBuilder,
    DeepseekV4CPUSparseBackend,
)
from vllm.models.deepseek_v4.cpu.cpu_sparse import DeepseekV4CPUAttention
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.utils import split_decodes_and_prefills
from vllm.v1.kv_cache_interface import AttentionSpec

from ds4_kernels.c128a.layout import NO_ENTRY, Batch, Buffers, active_width
from ds4_kernels.cpu.attention import paged_attention, undo_rope
from ds4_kernels.cpu.cache_layout import ROPE_DIM
from ds4_kernels.emulated_replay import EmulatedReplay, ReplayMode, ReplaySettings, builder_for

C128A_RATIO = 128


def local_to_slots(
    local: torch.Tensor, requests: torch.Tensor, block_table: torch.Tensor, page_entries: int
) -> torch.Tensor:
    """Resolve entries of requests to cache slots.

    Args:
        local: int ``[T, K]``, entry numbers within each token's request; -1 = none.
        requests: int ``[T]``, row of ``block_table`` of each token.
        block_table: int32 ``[R, pages]``.
        page_entries: entries in one page.

    Returns:
        int64 ``[T, K]``; -1 = none.
    """
    entries = local.clamp(min=0).long()
    pages = block_table[requests.long().unsqueeze(1), entries // page_entries].long()
    return (pages * page_entries + entries % page_entries).masked_fill(local < 0, NO_ENTRY)


def window_entries(positions: torch.Tensor, window: int) -> torch.Tensor:
    """List the tokens in each token's sliding window.

    Args:
        positions: int64 ``[T]``.
        window: tokens of the window, the token itself included.

    Returns:
        int64 ``[T, window]``, positions in rising order; -1 = none.
    """
    entries = (positions - window + 1).clamp(min=0).unsqueeze(1) + torch.arange(window)
    return entries.masked_fill(entries > positions.unsqueeze(1), NO_ENTRY)


def whole_entries(positions: torch.Tensor, ratio: int) -> torch.Tensor:
    """List the compressed entries that each token sees.

    Args:
        positions: int64 ``[T]``.
        ratio: tokens an entry.

    Returns:
        int64 ``[T, K]``, ``K`` the most that any token sees, in rising order; -1 = none.
    """
    counts = (positions + 1) // ratio
    entries = torch.arange(int(counts.max()) if counts.numel() else 0)
    return entries.masked_fill(entries >= counts.unsqueeze(1), NO_ENTRY)


def slots_from_metadata(slots: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """Read decode slots as the attention kernel does: of each row the first ``lens`` columns.

    Args:
        slots: int32 ``[D, columns]``, any row stride.
        lens: int32 ``[D]``.

    Returns:
        int64 ``[D, K]``, ``K`` the longest length; -1 = none.
    """
    columns = torch.arange(int(lens.max()) if lens.numel() else 0)
    return slots[:, : columns.shape[0]].long().masked_fill(columns >= lens.unsqueeze(1), NO_ENTRY)


def c128a_slots(
    metadata: Any, positions: torch.Tensor, requests: torch.Tensor, page_entries: int
) -> torch.Tensor:
    """Give the C128A slots of a step: decode rows from the metadata where it has them, the rest computed.

    Args:
        metadata: vLLM's ``DeepseekV4FlashMLAMetadata``.
        positions: int64 ``[T]``, decode tokens first.
        requests: int32 ``[T]``.
        page_entries: entries in one page.

    Returns:
        int64 ``[T, K]``; -1 = none.
    """
    from_metadata = metadata.c128a_global_decode_topk_indices
    if from_metadata is None:
        return local_to_slots(
            whole_entries(positions, C128A_RATIO), requests, metadata.block_table, page_entries
        )
    decodes = from_metadata.shape[0]
    parts = [slots_from_metadata(from_metadata.flatten(1), metadata.c128a_decode_topk_lens)]
    if decodes < positions.shape[0]:
        entries = whole_entries(positions[decodes:], C128A_RATIO)
        parts.append(local_to_slots(entries, requests[decodes:], metadata.block_table, page_entries))
    width = max(part.shape[1] for part in parts)
    pad = torch.nn.functional.pad
    return torch.cat([pad(part, (0, width - part.shape[1]), value=NO_ENTRY) for part in parts])


def _flat_pages(cache: torch.Tensor) -> torch.Tensor:
    return cache.view(cache.shape[0], -1)


def forward_mqa(
    self: DeepseekV4CPUAttention,
    q: torch.Tensor,
    kv: torch.Tensor,
    positions: torch.Tensor,
    output: torch.Tensor,
) -> None:
    """Attend to the sliding window and the compressed entries (method of ``DeepseekV4CPUAttention``).

    Args:
        self: the layer.
        q: float32 ``[T, H, 512]``, normalised and rotated.
        kv: not used: keys are read from the cache.
        positions: int64 ``[T]``.
        output: float32 ``[T, H, 512]``, written.
    """
    all_metadata = get_forward_context().attn_metadata
    if not isinstance(all_metadata, dict):  # a profiling run
        output.zero_()
        return
    window_metadata: Any = all_metadata[self.swa_cache_layer.prefix]
    tokens = q.shape[0]
    requests = window_metadata.token_to_req_indices[:tokens]
    window_cache = _flat_pages(self.swa_cache_layer.kv_cache)
    window_page = window_metadata.block_size
    window_slots = local_to_slots(
        window_entries(positions, self.window_size), requests, window_metadata.block_table, window_page
    )
    compressed_cache, compressed_page = window_cache, window_page
    compressed_slots = window_slots[:, :0]
    if self.compress_ratio > 1:
        metadata: Any = all_metadata[self.prefix]
        compressed_cache = _flat_pages(self.kv_cache)
        compressed_page = metadata.block_size // self.compress_ratio
        if self.compress_ratio == C128A_RATIO:
            compressed_slots = c128a_slots(metadata, positions, requests, compressed_page)
        else:
            chosen = self.topk_indices_buffer[:tokens]
            compressed_slots = local_to_slots(chosen, requests, metadata.block_table, compressed_page)
    paged_attention(
        output,
        q,
        window_cache,
        window_slots,
        window_page,
        compressed_cache,
        compressed_slots,
        compressed_page,
        self.attn_sink,
        self.scale,
    )


def keep_output_weight(self: DeepseekV4CPUAttention) -> None:
    """Keep the first output projection's weight as it was loaded (replaces its packing).

    Args:
        self: the layer; gets ``_wo_a_packed``, float32 ``[groups, rank, heads of the group * 512]``.
    """

    def keep(layer: torch.nn.Module) -> None:
        weight = layer.weight.detach().to(torch.float32, copy=True)
        self._wo_a_packed = weight.view(self.n_local_groups, self.o_lora_rank, -1)

    self.wo_a.quant_method.process_weights_after_loading = keep


def project_output(self: DeepseekV4CPUAttention, o: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Project attention outputs back to the hidden size, in float32.

    Args:
        self: the layer.
        o: float32 ``[T, H, 512]``.
        positions: int64 ``[T]``.

    Returns:
        ``[T, hidden size]`` in the type of ``o``.
    """
    if get_forward_context().attn_metadata is None:  # a profiling run
        return o.new_zeros((o.shape[0], self.hidden_size))
    unrotated = undo_rope(o, positions, self.rotary_emb.cos_sin_cache, ROPE_DIM)
    grouped = unrotated.reshape(o.shape[0], self.n_local_groups, -1).transpose(0, 1)
    reduced = torch.bmm(grouped, self._wo_a_packed.transpose(1, 2)).transpose(0, 1)
    return self.wo_b(reduced.flatten(1).to(o.dtype))


def require_float32(config: VllmConfig) -> None:
    """Refuse a model in another type than float32.

    Args:
        config: the server's configuration.

    Raises:
        ValueError: the model's type is not float32.
    """
    dtype = config.model_config.dtype
    if dtype != torch.float32:
        raise ValueError(
            f"DeepSeek V4 on the CPU is served in float32 only, not {dtype}: start with --dtype float32"
        )


def install_attention_layer(settings: ReplaySettings, on_replay: Callable[[EmulatedReplay], None]) -> None:
    """Replace the methods, and in emulated replay the metadata builder of the compressed layers.

    Args:
        settings: where decode slots come from.
        on_replay: told about the emulated replay when vLLM has allocated its buffers.
    """
    make_layer = DeepseekV4CPUAttention.__init__

    def make_float32_layer(
        self: DeepseekV4CPUAttention, config: VllmConfig, *args: Any, **kwargs: Any
    ) -> None:
        require_float32(config)
        make_layer(self, config, *args, **kwargs)

    DeepseekV4CPUAttention.__init__ = make_float32_layer
    DeepseekV4CPUAttention.forward_mqa = forward_mqa
    DeepseekV4CPUAttention._o_proj = project_output
    DeepseekV4CPUAttention._wrap_wo_a_process_weights_after_loading = keep_output_weight
    if settings.mode is ReplayMode.EMULATED:
        builder = emulated_builder(settings, on_replay)
        DeepseekV4CPUSparseBackend.get_builder_cls = staticmethod(lambda: builder)


def emulated_builder(
    settings: ReplaySettings, on_replay: Callable[[EmulatedReplay], None]
) -> type[DeepseekV4CPUFlashMLAMetadataBuilder]:
    """Make the metadata builder of emulated replay.

    Args:
        settings: which fault to put in.
        on_replay: told about the emulated replay when vLLM has allocated its buffers.

    Returns:
        A builder that fills the fields of C128A decode metadata, which vLLM's CPU builder leaves empty.
    """

    class EmulatedReplayMetadataBuilder(DeepseekV4CPUFlashMLAMetadataBuilder):
        def __init__(
            self,
            kv_cache_spec: AttentionSpec,
            layer_names: list[str],
            config: VllmConfig,
            device: torch.device,
        ) -> None:
            super().__init__(kv_cache_spec, layer_names, config, device)
            if self.compress_ratio != C128A_RATIO:
                return
            buffers = Buffers(
                self.c128a_global_decode_buffer, self.c128a_decode_lens_buffer, self.c128a_prefill_buffer
            )
            self._replay = EmulatedReplay(buffers, builder_for(settings.fault, settings.fault_ranks))
            on_replay(self._replay)

        def _build_c128a_metadata(
            self, cm: CommonAttentionMetadata, req_id_per_token: torch.Tensor
        ) -> dict[str, torch.Tensor | None]:
            _, prefills, decode_tokens, _ = split_decodes_and_prefills(cm, self.reorder_batch_threshold or 1)
            batch = Batch(
                positions=cm.positions[:decode_tokens],
                num_decode_tokens=decode_tokens,
                token_to_req=req_id_per_token,
                block_table=cm.block_table_tensor,
                block_size=self.kv_cache_spec.block_size // self.compress_ratio,
                slot_mapping=cm.slot_mapping,
                width=active_width(cm.max_seq_len, self.c128a_max_compressed, self.compress_ratio),
            )
            slots, lens = self._replay.step(batch, only_decodes=prefills == 0)
            if decode_tokens == 0:
                return {}
            return {"c128a_global_decode_topk_indices": slots.unsqueeze(1), "c128a_decode_topk_lens": lens}

    return EmulatedReplayMetadataBuilder
