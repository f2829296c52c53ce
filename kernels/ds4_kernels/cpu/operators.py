"""Puts this package's operators behind the names that vLLM calls, whatever the CPU brings itself.

vLLM's DeepSeek V4 operators exist only in its library for CPUs with AVX512-BF16. Arms on different machines,
or operators that are ours on one machine and vLLM's on another, could not be compared, so ours are installed
always: where vLLM has the operator its CPU kernel is overridden in PyTorch's dispatcher, elsewhere the
operator is defined.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ds4_kernels.cpu import attention, compressor, hyper_connections, indexer, routing

NAMESPACE = "_C"


@dataclass(frozen=True)
class Operator:
    """One operator of vLLM and its implementation here.

    Attributes:
        schema: PyTorch schema, types and aliasing as in vLLM 0.32.
        implementation: takes the schema's arguments in order.
    """

    schema: str
    implementation: Callable[..., object]

    @property
    def name(self) -> str:
        """The operator's name, without namespace."""
        return self.schema.partition("(")[0]


OPERATORS = (
    Operator(
        "hc_pre_fused_cpu(Tensor x, Tensor fn, Tensor scale, Tensor base, int streams, int rounds, float"
        " norm_eps, float eps) -> (Tensor, Tensor, Tensor)",
        hyper_connections.pre_block,
    ),
    Operator(
        "hc_post_fused_cpu(Tensor x, Tensor residual, Tensor post, Tensor comb) -> Tensor",
        hyper_connections.post_block,
    ),
    Operator(
        "hc_head_fused_cpu(Tensor x, Tensor fn, Tensor scale, Tensor base, float eps, float norm_eps) ->"
        " Tensor",
        hyper_connections.head,
    ),
    Operator(
        "fused_qnorm_rope_kv_insert_cpu(Tensor q, Tensor kv, Tensor positions, Tensor(a!) cache, Tensor"
        " slots, Tensor cos_sin, int padded_heads, float eps, int page_entries) -> Tensor",
        attention.norm_queries_and_store_keys,
    ),
    Operator(
        "flash_mla_with_kvcache_cpu(Tensor(a!) out, Tensor q, Tensor window_cache, Tensor window_slots,"
        " int window_page, Tensor compressed_cache, Tensor compressed_slots, int compressed_page, Tensor"
        " sinks, float scale) -> ()",
        attention.paged_attention,
    ),
    Operator(
        "inverse_gptj_rope_o_proj_cpu(Tensor o, Tensor positions, Tensor cos_sin, int rope_dim) -> Tensor",
        attention.undo_rope,
    ),
    Operator(
        "save_partial_states_cpu(Tensor kv, Tensor score, Tensor ape, Tensor positions, Tensor(a!)"
        " state_cache, Tensor slots) -> ()",
        compressor.save_partial_states,
    ),
    Operator(
        "compress_norm_rope_store_cpu(Tensor state_cache, Tensor window_slots, Tensor positions, Tensor"
        " entry_slots, Tensor norm_weight, float norm_eps, Tensor cos_sin, Tensor(a!) cache, int"
        " page_entries, int ratio) -> ()",
        compressor.compress_into_latents,
    ),
    Operator(
        "compress_norm_rope_store_indexer_cpu(Tensor state_cache, Tensor window_slots, Tensor positions,"
        " Tensor entry_slots, Tensor norm_weight, float norm_eps, Tensor cos_sin, Tensor(a!) cache, int"
        " page_entries, int ratio) -> ()",
        compressor.compress_into_indexer_keys,
    ),
    Operator(
        "fused_indexer_q_rope_quant_cpu(Tensor positions, Tensor q, Tensor cos_sin, Tensor(a!) q_out,"
        " Tensor weights, float softmax_scale, float head_scale, Tensor(b!) weights_out) -> ()",
        indexer.quantize_queries,
    ),
    Operator(
        "fp8_paged_mqa_logits_cpu(Tensor q, Tensor cache, Tensor weights, Tensor seq_lens, Tensor"
        " page_table, int page_entries, int max_entries) -> Tensor",
        indexer.paged_logits,
    ),
    Operator(
        "topk_transform_512_cpu(Tensor scores, Tensor seq_lens, Tensor page_table, Tensor(a!) out, int"
        " page_entries, Tensor(b!)? raw_out) -> ()",
        indexer.topk_entries,
    ),
    Operator(
        "biased_topk_cpu(Tensor hidden, Tensor logits, Tensor bias, int topk, bool renormalize, str"
        " scoring, int shared_experts, float? scaling, bool apply_scaling) -> (Tensor, Tensor)",
        routing.biased_topk,
    ),
    Operator(
        "hash_topk_cpu(Tensor logits, Tensor experts, int topk, str scoring, int shared_experts, int"
        " num_experts, float scaling) -> (Tensor, Tensor)",
        routing.hash_topk,
    ),
)


@dataclass(frozen=True)
class Installed:
    """What :func:`install_operators` did.

    Attributes:
        library: keeps the operators registered for as long as it lives.
        overridden: names that vLLM has on this CPU.
        defined: names that it lacks.
    """

    library: torch.library.Library
    overridden: tuple[str, ...]
    defined: tuple[str, ...]


def install_operators() -> Installed:
    """Install every operator; call once, after vLLM has loaded its own library.

    Returns:
        What was done.
    """
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    namespace = getattr(torch.ops, NAMESPACE)
    overridden: list[str] = []
    defined: list[str] = []
    for operator in OPERATORS:
        if hasattr(namespace, operator.name):
            overridden.append(operator.name)
        else:
            library.define(operator.schema)
            defined.append(operator.name)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*[Oo]verriding a previously registered kernel.*")
            library.impl(operator.name, operator.implementation, "CPU", allow_override=True)
    return Installed(library, tuple(overridden), tuple(defined))
