"""Expert routing against loops with the standard library."""

import math

import pytest
import torch
from ds4_kernels.cpu import routing

TOKENS, EXPERTS, TOPK = 6, 8, 3


def score(logit: float) -> float:
    return math.sqrt(math.log1p(math.exp(logit)))


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize(
    ("scaling", "apply_scaling", "factor"), [(1.5, True, 1.5), (1.5, False, 1.0), (None, True, 1.0)]
)
def test_bias_chooses_and_scores_weigh(renormalize, scaling, apply_scaling, factor):
    torch.manual_seed(0)
    logits, bias = torch.randn(TOKENS, EXPERTS), torch.randn(EXPERTS)
    weights, experts = routing.biased_topk(
        logits, logits, bias, TOPK, renormalize, "sqrtsoftplus", 0, scaling, apply_scaling
    )
    assert experts.dtype == torch.int32
    chosen_by_bias = 0
    for t in range(TOKENS):
        scores = [score(float(x)) for x in logits[t]]
        ranked = sorted(range(EXPERTS), key=lambda e: -(scores[e] + float(bias[e])))[:TOPK]
        chosen_by_bias += set(ranked) != set(sorted(range(EXPERTS), key=lambda e: -scores[e])[:TOPK])
        assert experts[t].tolist() == ranked
        total = sum(scores[e] for e in ranked) if renormalize else 1.0
        expected = torch.tensor([scores[e] / total * factor for e in ranked])
        torch.testing.assert_close(weights[t], expected, rtol=1e-5, atol=1e-6)
    assert chosen_by_bias  # else the bias was not tested


def test_hash_routing_keeps_the_tables_choice():
    torch.manual_seed(1)
    logits = torch.randn(TOKENS, EXPERTS)
    table = torch.stack([torch.randperm(EXPERTS)[:TOPK] for _ in range(TOKENS)]).int()
    weights, experts = routing.hash_topk(logits, table, TOPK, "sqrtsoftplus", 0, EXPERTS, 2.5)
    assert torch.equal(experts, table)
    assert experts.data_ptr() != table.data_ptr()
    for t in range(TOKENS):
        scores = [score(float(logits[t, e])) for e in table[t].tolist()]
        expected = torch.tensor([s / sum(scores) * 2.5 for s in scores])
        torch.testing.assert_close(weights[t], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("scoring", "shared"), [("softmax", 0), ("sqrtsoftplus", 1)])
def test_other_routing_is_refused(scoring, shared):
    logits = torch.zeros(1, EXPERTS)
    with pytest.raises(NotImplementedError, match="sqrtsoftplus"):
        routing.biased_topk(logits, logits, logits[0], 2, True, scoring, shared, None, False)
    with pytest.raises(NotImplementedError, match="sqrtsoftplus"):
        routing.hash_topk(logits, torch.zeros(1, 2).int(), 2, scoring, shared, EXPERTS, 1.0)
