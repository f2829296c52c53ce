"""Hyper-connections against float64 loops."""

import math

import torch
from ds4_kernels.cpu import hyper_connections

TOKENS, STREAMS, HIDDEN = 3, 4, 8
EPS, NORM_EPS = 1e-3, 1e-2  # large, so that leaving one out is seen


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def mixes_of(token: torch.Tensor, weight: torch.Tensor) -> list[float]:
    flat = [float(x) for x in token.flatten()]
    root = math.sqrt(sum(x * x for x in flat) / len(flat) + NORM_EPS)
    return [sum(float(w) * x for w, x in zip(row, flat, strict=True)) / root for row in weight]


def sinkhorn(scores: list[list[float]], rounds: int) -> list[list[float]]:
    size = len(scores)
    mix = []
    for row in scores:
        total = sum(math.exp(x) for x in row)
        mix.append([math.exp(x) / total + EPS for x in row])
    for index in range(rounds):
        if index:
            mix = [[x / (sum(row) + EPS) for x in row] for row in mix]
        sums = [sum(mix[i][j] for i in range(size)) for j in range(size)]
        mix = [[mix[i][j] / (sums[j] + EPS) for j in range(size)] for i in range(size)]
    return mix


def example():
    torch.manual_seed(0)
    mixes = (2 + STREAMS) * STREAMS
    return (
        torch.randn(TOKENS, STREAMS, HIDDEN),
        torch.randn(mixes, STREAMS * HIDDEN) / 5,
        torch.tensor([0.7, 1.3, 2.0]),
        torch.randn(mixes),
    )


def test_pre_block():
    streams, weight, scale, base = example()
    rounds = 3
    got_input, got_gates, got_mixing = hyper_connections.pre_block(
        streams, weight, scale, base, STREAMS, rounds, NORM_EPS, EPS
    )
    for t in range(TOKENS):
        mixes = mixes_of(streams[t], weight)
        gates = [sigmoid(mixes[s] * 0.7 + float(base[s])) + EPS for s in range(STREAMS)]
        expected_input = sum(gate * streams[t, s].double() for s, gate in enumerate(gates))
        expected_gates = [
            2 * sigmoid(mixes[STREAMS + s] * 1.3 + float(base[STREAMS + s])) for s in range(STREAMS)
        ]
        scores = [
            [
                mixes[2 * STREAMS + i * STREAMS + j] * 2.0 + float(base[2 * STREAMS + i * STREAMS + j])
                for j in range(STREAMS)
            ]
            for i in range(STREAMS)
        ]
        torch.testing.assert_close(got_input[t].double(), expected_input, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(got_gates[t], torch.tensor(expected_gates), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            got_mixing[t], torch.tensor(sinkhorn(scores, rounds)), rtol=1e-5, atol=1e-6
        )


def test_mixing_becomes_doubly_stochastic():
    streams, weight, scale, base = example()
    _, _, mixing = hyper_connections.pre_block(streams, weight, scale, base, STREAMS, 50, 1e-6, 1e-9)
    torch.testing.assert_close(mixing.sum(-1), torch.ones(TOKENS, STREAMS), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mixing.sum(-2), torch.ones(TOKENS, STREAMS), rtol=1e-4, atol=1e-4)


def test_post_block_moves_from_rows_to_columns():
    torch.manual_seed(1)
    streams, output = torch.randn(TOKENS, STREAMS, HIDDEN), torch.randn(TOKENS, HIDDEN)
    gates, mixing = torch.randn(TOKENS, STREAMS), torch.randn(TOKENS, STREAMS, STREAMS)
    got = hyper_connections.post_block(output, streams, gates, mixing)
    for t in range(TOKENS):
        for target in range(STREAMS):
            expected = gates[t, target].double() * output[t].double()
            for source in range(STREAMS):
                expected = expected + mixing[t, source, target].double() * streams[t, source].double()
            torch.testing.assert_close(got[t, target].double(), expected, rtol=1e-5, atol=1e-5)


def test_head():
    streams, weight, _, base = example()
    got = hyper_connections.head(
        streams, weight[:STREAMS], torch.tensor([1.7]), base[:STREAMS], EPS, NORM_EPS
    )
    for t in range(TOKENS):
        mixes = mixes_of(streams[t], weight[:STREAMS])
        expected = sum(
            (sigmoid(mixes[s] * 1.7 + float(base[s])) + EPS) * streams[t, s].double() for s in range(STREAMS)
        )
        torch.testing.assert_close(got[t].double(), expected, rtol=1e-5, atol=1e-6)


def test_nan_stays_in_its_token():
    streams, weight, scale, base = example()
    streams[1, 2, 3] = math.nan
    for part in hyper_connections.pre_block(streams, weight, scale, base, STREAMS, 3, NORM_EPS, EPS):
        assert part[1].isnan().any()
        assert part[[0, 2]].isfinite().all()
