"""The shapes of synthetic DeepSeek V4 checkpoints, their configuration and their random weights.

Every tensor has a random stream of its own, drawn from the seed and its name (see `checkpoint_weights`).

How the default gains were chosen: eight forced requests at once (contexts 150 to 3,000, 32 tokens, geometry
``cpu``, seed 1, C4A alive), KL divergence a position against one fresh server. "hit" counts, of the seven
requests outside row 0, those with a position over 0.1. Arrival order was left free, but for the first line.

    attention  sharpness   fresh again, max   packed stride, mean   max    hit
    4          2           0 (order fixed)    0.035                 0.67   5
    8          2           2e-12              0.097                 0.71   6
    4          4           7e-11              0.089                 1.00   7   (the default)
    8          4           4e-10              0.179                 1.92   7

The last one amplifies harmless differences too: its spared row moved by up to 0.03 when prefill was cut into
other chunks, against 3e-5 with the default.

The gains of geometry ``h200`` are those of the weights behind `reports/evidence/h200-transcripts`, as far as
the two ways of drawing can agree: attention 16, sharpness 4, streams that mostly keep to themselves (identity
2, mixing 0.3). There, with C4A alive, two right runs were 0.0033 nats apart and the packed stride 0.124. What
other gains give on the card stands in `reports/evidence/h200/README.md`; half the sharpness, for one, has a
sixth of the floor and three quarters of the effect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from ds4_kernels.checkpoint_weights import SCALE_BLOCK, BlockScaledWeights, Tensors, Weights

HEAD_DIM = 512  # fixed by vLLM, as are the next four
ROPE_DIM = 64
INDEX_HEAD_DIM = 128
INDEX_TOPK = 512
WINDOW = 128
C4_RATIO = 4
CPU = torch.device("cpu")


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The shape of a checkpoint.

    Attributes:
        ratios: compress ratio of each layer: 0 (sliding window only), 4 (C4A) or 128 (C128A).
        hidden: hidden size, a multiple of 32.
        heads: attention heads.
        vocabulary: token ids.
        query_rank: LoRA rank of the queries.
        output_rank: LoRA rank of the output, a group.
        output_groups: groups of heads in the output projection.
        index_heads: heads of the indexer.
        experts: routed experts a layer.
        chosen_experts: experts a token.
        expert_hidden: hidden size of one expert.
        hash_layers: first layers whose experts are chosen by token id.
        streams: residual streams (hyper-connections).
        max_positions: longest context, in tokens.
        block_scaled: projections and experts are FP8 with block scales, as vLLM's GPU kernels want them.
    """

    ratios: tuple[int, ...]
    hidden: int
    heads: int
    vocabulary: int
    query_rank: int
    output_rank: int
    output_groups: int
    index_heads: int
    experts: int
    chosen_experts: int
    expert_hidden: int
    hash_layers: int
    streams: int
    max_positions: int
    block_scaled: bool = False


GEOMETRIES = {
    "cpu": Geometry(
        ratios=(0, 4, 128, 128),
        hidden=256,
        heads=4,
        vocabulary=2048,
        query_rank=128,
        output_rank=64,
        output_groups=2,
        index_heads=8,
        experts=8,
        chosen_experts=2,
        expert_hidden=128,
        hash_layers=1,
        streams=4,
        max_positions=65536,
    ),
    # Attention as in the released DeepSeek-V4-Flash; depth, experts and vocabulary are small.
    "h200": Geometry(
        ratios=(0, 4, 128, 4, 128, 128),
        hidden=4096,
        heads=64,
        vocabulary=4096,
        query_rank=1024,
        output_rank=1024,
        output_groups=8,
        index_heads=64,
        experts=32,
        chosen_experts=6,
        expert_hidden=256,
        hash_layers=6,
        streams=4,
        max_positions=1048576,
        block_scaled=True,
    ),
}


@dataclasses.dataclass(frozen=True)
class Conditioning:
    """Gains over unit variance.

    Attributes:
        attention: output of attention; averaging over many keys shrinks it.
        sharpness: size of attention scores: sharper attention depends on fewer entries.
        feed_forward: output of the experts.
        logits: size of the logits.
        mixing: how much the residual streams' mixing depends on their content.
        identity: how much each residual stream keeps to itself.
    """

    attention: float = 4.0
    sharpness: float = 4.0
    feed_forward: float = 1.0
    logits: float = 3.0
    mixing: float = 1.0
    identity: float = 0.0


CONDITIONING = {
    "cpu": Conditioning(),
    "h200": Conditioning(attention=16.0, logits=2.0, mixing=0.3, identity=2.0),
}
"""The default gains of each geometry."""


_BLOCK_SCALED: dict[str, object] = {
    "n_group": 1,
    "topk_group": 1,
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "scale_fmt": "ue8m0",
        "weight_block_size": [SCALE_BLOCK, SCALE_BLOCK],
    },
}


_FIXED: dict[str, object] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "torch_dtype": "bfloat16",
    "num_key_value_heads": 1,
    "head_dim": HEAD_DIM,
    "qk_rope_head_dim": ROPE_DIM,
    "compress_rope_theta": 160000,
    "sliding_window": WINDOW,
    "index_head_dim": INDEX_HEAD_DIM,
    "index_topk": INDEX_TOPK,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "n_shared_experts": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "hidden_act": "silu",
    "num_nextn_predict_layers": 0,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "use_cache": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "rope_theta": 10000,
}
"""What every geometry shares: the released model's values, and no draft layers."""


def make_config(geometry: Geometry) -> dict[str, object]:
    """Write a checkpoint's ``config.json`` for vLLM 0.26 to 0.33.

    Args:
        geometry: the checkpoint's shape.

    Returns:
        The configuration.
    """
    return {
        **_FIXED,
        "expert_dtype": "fp8" if geometry.block_scaled else "bf16",
        "vocab_size": geometry.vocabulary,
        "hidden_size": geometry.hidden,
        "num_hidden_layers": len(geometry.ratios),
        "num_attention_heads": geometry.heads,
        "q_lora_rank": geometry.query_rank,
        "o_lora_rank": geometry.output_rank,
        "o_groups": geometry.output_groups,
        "compress_ratios": list(geometry.ratios),
        "index_n_heads": geometry.index_heads,
        "hc_mult": geometry.streams,
        "n_routed_experts": geometry.experts,
        "num_experts_per_tok": geometry.chosen_experts,
        "moe_intermediate_size": geometry.expert_hidden,
        "num_hash_layers": geometry.hash_layers,
        "max_position_embeddings": geometry.max_positions,
        "rope_scaling": {
            "type": "yarn",
            "rope_type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": geometry.max_positions // 16,
        },
        **(_BLOCK_SCALED if geometry.block_scaled else {}),
    }


def make_weights(
    geometry: Geometry, conditioning: Conditioning, seed: int, mute_c4: bool, device: torch.device = CPU
) -> Tensors:
    """Draw a checkpoint's tensors, named as DeepSeek names them.

    Args:
        geometry: the checkpoint's shape.
        conditioning: gains.
        seed: seed of every stream.
        mute_c4: set the output projection of C4A layers to zero.
        device: where block-scaled geometries are drawn; the bytes are the same everywhere.

    Returns:
        Tensors by name, on the CPU: bfloat16 or block-scaled FP8 matrices, bfloat16 norms, float32 gates and
        biases.
    """
    weights = BlockScaledWeights(seed, device) if geometry.block_scaled else Weights(seed)
    hidden, streams = geometry.hidden, geometry.streams
    weights.linear("embed", geometry.vocabulary, hidden, hidden**0.5)
    weights.linear("head", geometry.vocabulary, hidden, conditioning.logits)
    weights.norm("norm", hidden)
    weights.float32("hc_head_fn", streams, streams * hidden, gain=(streams * hidden) ** -0.5)
    weights.constant("hc_head_base", 0.0, streams)
    weights.constant("hc_head_scale", 1.0, 1)
    for layer, ratio in enumerate(geometry.ratios):
        prefix = f"layers.{layer}"
        _add_hyper_connections(weights, prefix, geometry, conditioning)
        _add_attention(weights, f"{prefix}.attn", geometry, conditioning, ratio)
        if mute_c4 and ratio == C4_RATIO:
            output = f"{prefix}.attn.wo_b.weight"
            weights.tensors[output] = torch.zeros_like(weights.tensors[output])
        _add_experts(weights, f"{prefix}.ffn", geometry, conditioning, layer < geometry.hash_layers)
    return {name: tensor.cpu().contiguous() for name, tensor in weights.tensors.items()}


def _add_hyper_connections(
    weights: Weights, prefix: str, geometry: Geometry, conditioning: Conditioning
) -> None:
    streams, hidden = geometry.streams, geometry.hidden
    mixes = (2 + streams) * streams
    for block in ("attn", "ffn"):
        weights.norm(f"{prefix}.{block}_norm", hidden)
        weights.float32(f"{prefix}.hc_{block}_fn", mixes, streams * hidden, gain=(streams * hidden) ** -0.5)
        weights.float32(f"{prefix}.hc_{block}_base", mixes, gain=0.5)
        own = weights.tensors[f"{prefix}.hc_{block}_base"][2 * streams :].view(streams, streams)
        own.diagonal().add_(conditioning.identity)
        weights.constant(f"{prefix}.hc_{block}_scale", conditioning.mixing, 3)


def _add_attention(
    weights: Weights, prefix: str, geometry: Geometry, conditioning: Conditioning, ratio: int
) -> None:
    # Queries have norm sqrt(512) after their own normalisation, so the norm of the keys sets the size of the
    # scores; values are the same vectors, hence the division in the output.
    key_gain = conditioning.sharpness / 2
    group = geometry.heads * HEAD_DIM // geometry.output_groups
    ranks = geometry.output_groups * geometry.output_rank
    weights.projection(f"{prefix}.wq_a", geometry.query_rank, geometry.hidden)
    weights.norm(f"{prefix}.q_norm", geometry.query_rank)
    weights.projection(f"{prefix}.wq_b", geometry.heads * HEAD_DIM, geometry.query_rank)
    weights.projection(f"{prefix}.wkv", HEAD_DIM, geometry.hidden)
    weights.norm(f"{prefix}.kv_norm", HEAD_DIM, key_gain)
    weights.projection(f"{prefix}.wo_a", ranks, group)
    output_gain = conditioning.attention / conditioning.sharpness
    weights.projection(f"{prefix}.wo_b", geometry.hidden, ranks, output_gain)
    weights.constant(f"{prefix}.attn_sink", 0.0, geometry.heads)
    if ratio:
        _add_compressor(weights, f"{prefix}.compressor", geometry.hidden, HEAD_DIM, ratio, key_gain)
    if ratio == C4_RATIO:
        indexer = f"{prefix}.indexer"
        weights.projection(f"{indexer}.wq_b", geometry.index_heads * INDEX_HEAD_DIM, geometry.query_rank)
        weights.linear(f"{indexer}.weights_proj", geometry.index_heads, geometry.hidden)
        _add_compressor(weights, f"{indexer}.compressor", geometry.hidden, INDEX_HEAD_DIM, ratio, 1.0)


def _add_compressor(
    weights: Weights, prefix: str, hidden: int, dim: int, ratio: int, norm_gain: float
) -> None:
    channels = dim * (2 if ratio == C4_RATIO else 1)  # C4A entries overlap
    weights.linear(f"{prefix}.wkv", channels, hidden)
    weights.linear(f"{prefix}.wgate", channels, hidden, 2.0)
    weights.float32(f"{prefix}.ape", ratio, channels, gain=0.5)
    weights.norm(f"{prefix}.norm", dim, norm_gain)


def _add_experts(
    weights: Weights, prefix: str, geometry: Geometry, conditioning: Conditioning, by_token: bool
) -> None:
    weights.linear(f"{prefix}.gate", geometry.experts, geometry.hidden)
    if by_token:
        weights.expert_table(
            f"{prefix}.gate.tid2eid", geometry.vocabulary, geometry.experts, geometry.chosen_experts
        )
    else:
        weights.float32(f"{prefix}.gate.bias", geometry.experts, gain=0.1)
    for expert in [f"experts.{number}" for number in range(geometry.experts)] + ["shared_experts"]:
        for matrix, outputs, inputs in _expert_shapes(geometry):
            weights.projection(f"{prefix}.{expert}.{matrix}", outputs, inputs, conditioning.feed_forward)


def _expert_shapes(geometry: Geometry) -> Iterator[tuple[str, int, int]]:
    yield "w1", geometry.expert_hidden, geometry.hidden
    yield "w3", geometry.expert_hidden, geometry.hidden
    yield "w2", geometry.hidden, geometry.expert_hidden
