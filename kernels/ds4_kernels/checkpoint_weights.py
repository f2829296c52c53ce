"""Named random tensors of a synthetic checkpoint, whose bytes depend on the seed and the name alone.

`Weights` draws by numpy's PCG64, whose results do not depend on the CPU, and keeps matrices in bfloat16.
`BlockScaledWeights` draws with integer arithmetic of torch, so that 1.4 GB are made on a GPU in seconds and
any device gives the same bytes, and keeps projections in FP8 with one scale for each block of 128 by 128, as
the released DeepSeek V4 does.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
import torch

Tensors = dict[str, torch.Tensor]

SCALE_BLOCK = 128

# The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): its
# output for consecutive states is what each element is made of.
_STEP = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_PARTS, _PART_BITS = 4, 16


def _signed(value: int) -> int:
    """A 64-bit pattern as torch's int64 holds it; its products wrap just as unsigned ones do."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _shifted(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def random_words(seed: int, name: str, count: int, device: torch.device) -> torch.Tensor:
    """Draw 64-bit words.

    Args:
        seed: seed of the checkpoint.
        name: of the tensor; each has a stream of its own.
        count: how many.
        device: where.

    Returns:
        int64 ``[count]``, the same on every device.
    """
    start = _signed((seed * 2**32 + zlib.crc32(name.encode())) * _MULTIPLIERS[1])
    words = torch.arange(1, count + 1, dtype=torch.int64, device=device).mul_(_signed(_STEP)).add_(start)
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        words.bitwise_xor_(_shifted(words, shift)).mul_(_signed(multiplier))
    return words.bitwise_xor_(_shifted(words, _SHIFTS[-1]))


class Weights:
    """Draws named tensors on the CPU; matrices in bfloat16."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.tensors: Tensors = {}

    def _normal(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        generator = np.random.Generator(np.random.PCG64([self._seed, zlib.crc32(name.encode())]))
        return torch.from_numpy(generator.standard_normal(tuple(shape), dtype=np.float32))

    def linear(self, name: str, outputs: int, inputs: int, gain: float = 1.0) -> None:
        """Add a bfloat16 matrix that keeps unit variance, times a gain.

        Args:
            name: the tensor is ``name.weight``, ``[outputs, inputs]``.
            outputs: rows.
            inputs: columns.
            gain: standard deviation of an output for inputs of unit variance.
        """
        weight = self._normal(name, (outputs, inputs)) * (gain / inputs**0.5)
        self.tensors[f"{name}.weight"] = weight.to(torch.bfloat16)

    def projection(self, name: str, outputs: int, inputs: int, gain: float = 1.0) -> None:
        """Add a matrix of the kind that released checkpoints quantise; here it is like any other.

        Args:
            name: see :meth:`linear`.
            outputs: rows.
            inputs: columns.
            gain: see :meth:`linear`.
        """
        self.linear(name, outputs, inputs, gain)

    def norm(self, name: str, size: int, gain: float = 1.0) -> None:
        """Add a bfloat16 RMS norm weight around a gain.

        Args:
            name: the tensor is ``name.weight``, ``[size]``.
            size: channels.
            gain: mean of the weights; they deviate from it by a tenth.
        """
        weight = gain * (1 + 0.1 * self._normal(name, (size,)))
        self.tensors[f"{name}.weight"] = weight.to(torch.bfloat16)

    def float32(self, name: str, *shape: int, gain: float = 1.0) -> None:
        """Add a float32 tensor of normal values.

        Args:
            name: the tensor's name.
            shape: its shape.
            gain: their standard deviation.
        """
        self.tensors[name] = self._normal(name, shape) * gain

    def expert_table(self, name: str, tokens: int, experts: int, chosen: int) -> None:
        """Add an int32 table of different experts for each token id.

        Args:
            name: the tensor is ``name``, ``[tokens, chosen]``.
            tokens: size of the vocabulary.
            experts: experts to choose from.
            chosen: different experts of each token.
        """
        order = self._normal(name, (tokens, experts)).argsort(dim=1, stable=True)
        self.tensors[name] = order[:, :chosen].to(torch.int32).contiguous()

    def constant(self, name: str, value: float, *shape: int) -> None:
        """Add a constant float32 tensor.

        Args:
            name: the tensor's name.
            value: every one of its values.
            shape: its shape.
        """
        self.tensors[name] = torch.full(shape, value)


class BlockScaledWeights(Weights):
    """Draws named tensors on any device; projections in FP8 (e4m3), a power-of-two scale for each block."""

    def __init__(self, seed: int, device: torch.device) -> None:
        super().__init__(seed)
        self._device = device

    def _normal(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        # The sum of four 16-bit numbers: close to normal (no value beyond 3.5 deviations), and exact in
        # float32 before the one multiplication.
        words = random_words(self._seed, name, math.prod(shape), self._device)
        total = torch.zeros_like(words)
        for part in range(_PARTS):
            total += (words >> (_PART_BITS * part)) & (2**_PART_BITS - 1)
        largest = 2**_PART_BITS - 1
        deviation = (_PARTS * ((largest + 1) ** 2 - 1) / 12) ** 0.5
        centred = (total - _PARTS * largest // 2).to(torch.float32)
        return (centred * (1 / deviation)).reshape(tuple(shape))

    def projection(self, name: str, outputs: int, inputs: int, gain: float = 1.0) -> None:
        """Add an FP8 matrix that keeps unit variance, times a gain, and ``[outputs/128, inputs/128]`` scales.

        The scale is the nearest power of two, which is exact in the ue8m0 format that the GPU's kernels use.

        Args:
            name: the matrix is ``name.weight``, ``[outputs, inputs]``.
            outputs: rows.
            inputs: columns.
            gain: see :meth:`linear`.
        """
        deviation = gain / inputs**0.5
        scale = 2.0 ** round(math.log2(deviation))
        weight = self._normal(name, (outputs, inputs)) * (deviation / scale)
        self.tensors[f"{name}.weight"] = weight.to(torch.float8_e4m3fn).cpu()
        blocks = (-(-outputs // SCALE_BLOCK), -(-inputs // SCALE_BLOCK))
        self.tensors[f"{name}.scale"] = torch.full(blocks, scale)
