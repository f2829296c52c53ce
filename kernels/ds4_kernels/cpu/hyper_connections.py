"""Manifold-constrained hyper-connections: several residual streams a token, mixed around each block.

Formulas: the mHC paper as vLLM's ``mhc_pre``/``mhc_post`` implement it for DeepSeek V4, with one epsilon for
the gates and for the Sinkhorn normalisation.
"""

from __future__ import annotations

import torch

POST_GATE_SCALE = 2.0  # fixed in vLLM's CPU path


def _mixes(streams: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Project the RMS-normalised streams of each token: ``[T, S, D]`` and ``[M, S * D]`` to ``[T, M]``."""
    flat = streams.flatten(1).float()
    return (flat @ weight.t()) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)


def _sinkhorn(scores: torch.Tensor, rounds: int, eps: float) -> torch.Tensor:
    """Make ``[T, S, S]`` nearly doubly stochastic by normalising rows and columns in turn."""
    mix = torch.softmax(scores, -1) + eps
    mix = mix / (mix.sum(-2, keepdim=True) + eps)
    for _ in range(rounds - 1):
        mix = mix / (mix.sum(-1, keepdim=True) + eps)
        mix = mix / (mix.sum(-2, keepdim=True) + eps)
    return mix


def pre_block(
    streams: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    num_streams: int,
    sinkhorn_rounds: int,
    norm_eps: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mix the residual streams into one block input and compute the gates for :func:`post_block`.

    Args:
        streams: float32 ``[T, S, D]``.
        weight: float32 ``[(2 + S) * S, S * D]``.
        scale: float32 ``[3]``, for input gates, output gates and stream mixing.
        base: float32 ``[(2 + S) * S]``.
        num_streams: ``S``.
        sinkhorn_rounds: normalisation rounds, at least 1.
        norm_eps: epsilon of the RMS norm.
        eps: epsilon of the gates and of the Sinkhorn normalisation.

    Returns:
        Block input ``[T, D]`` in the type of ``streams``, output gates float32 ``[T, S]``, stream mixing
        float32 ``[T, S, S]``.
    """
    mixes = _mixes(streams, weight, norm_eps)
    gates_in, gates_out, mixing = mixes.split([num_streams, num_streams, num_streams**2], dim=-1)
    base_in, base_out, base_mixing = base.split([num_streams, num_streams, num_streams**2])
    gates_in = torch.sigmoid(gates_in * scale[0] + base_in) + eps
    gates_out = torch.sigmoid(gates_out * scale[1] + base_out) * POST_GATE_SCALE
    mixing = (mixing * scale[2] + base_mixing).unflatten(-1, (num_streams, num_streams))
    block_input = (gates_in.unsqueeze(-1) * streams.float()).sum(1).to(streams.dtype)
    return block_input, gates_out, _sinkhorn(mixing, sinkhorn_rounds, eps)


def post_block(
    block_output: torch.Tensor, streams: torch.Tensor, gates: torch.Tensor, mixing: torch.Tensor
) -> torch.Tensor:
    """Spread a block's output over the streams and mix those.

    Args:
        block_output: float32 ``[T, D]``.
        streams: float32 ``[T, S, D]``.
        gates: float32 ``[T, S]``.
        mixing: float32 ``[T, S, S]``, from stream (rows) to stream (columns).

    Returns:
        ``[T, S, D]`` in the type of ``block_output``.
    """
    mixed = mixing.float().transpose(1, 2) @ streams.float()
    return (mixed + gates.float().unsqueeze(-1) * block_output.float().unsqueeze(1)).to(block_output.dtype)


def head(
    streams: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    eps: float,
    norm_eps: float,
) -> torch.Tensor:
    """Reduce the streams to one hidden state before the final norm.

    Args:
        streams: float32 ``[T, S, D]``.
        weight: float32 ``[S, S * D]``.
        scale: float32 ``[1]``.
        base: float32 ``[S]``.
        eps: epsilon of the gates.
        norm_eps: epsilon of the RMS norm.

    Returns:
        ``[T, D]`` in the type of ``streams``.
    """
    gates = torch.sigmoid(_mixes(streams, weight, norm_eps) * scale + base) + eps
    return (gates.unsqueeze(-1) * streams.float()).sum(1).to(streams.dtype)
