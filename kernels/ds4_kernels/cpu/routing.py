"""Choice of experts by ``sqrt(softplus(logit))`` scores: bias-corrected top-k, or a table of token ids."""

from __future__ import annotations

import torch

SCORING = "sqrtsoftplus"


def _scores(logits: torch.Tensor) -> torch.Tensor:
    return torch.sqrt(torch.nn.functional.softplus(logits.float()))


def _check(scoring: str, shared_experts: int) -> None:
    if scoring != SCORING or shared_experts:
        raise NotImplementedError(
            f"expert routing with scoring {scoring!r} and {shared_experts} fused shared experts: "
            f"only {SCORING!r} without fused shared experts is implemented"
        )


def biased_topk(
    hidden: torch.Tensor,
    logits: torch.Tensor,
    bias: torch.Tensor,
    topk: int,
    renormalize: bool,
    scoring: str,
    shared_experts: int,
    scaling: float | None,
    apply_scaling: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the experts with the highest score + bias; weigh them by the score alone.

    Args:
        hidden: ``[T, ...]``, not used (part of the operator's interface).
        logits: float32 ``[T, E]``.
        bias: float32 ``[E]``.
        topk: experts a token.
        renormalize: make the weights of a token sum to 1.
        scoring: must be ``"sqrtsoftplus"``.
        shared_experts: must be 0.
        scaling: factor on the weights.
        apply_scaling: whether to apply it.

    Returns:
        Weights float32 ``[T, topk]`` and expert numbers int32 ``[T, topk]``.

    Raises:
        NotImplementedError: another scoring, or fused shared experts.
    """
    _check(scoring, shared_experts)
    scores = _scores(logits)
    experts = torch.topk(scores + bias, topk, dim=-1).indices
    weights = scores.gather(1, experts)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    if apply_scaling and scaling is not None:
        weights = weights * scaling
    return weights, experts.to(torch.int32)


def hash_topk(
    logits: torch.Tensor,
    experts: torch.Tensor,
    topk: int,
    scoring: str,
    shared_experts: int,
    num_experts: int,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weigh experts that a table has chosen.

    Args:
        logits: float32 ``[T, E]``.
        experts: int32 ``[T, topk]``, the table's choice.
        topk: experts a token.
        scoring: must be ``"sqrtsoftplus"``.
        shared_experts: must be 0.
        num_experts: ``E``, not used (part of the operator's interface).
        scaling: sum of a token's weights.

    Returns:
        Weights float32 ``[T, topk]`` and expert numbers int32 ``[T, topk]``.

    Raises:
        NotImplementedError: another scoring, or fused shared experts.
    """
    _check(scoring, shared_experts)
    weights = _scores(logits).gather(1, experts.long())
    return weights / weights.sum(-1, keepdim=True) * scaling, experts.to(torch.int32, copy=True)
