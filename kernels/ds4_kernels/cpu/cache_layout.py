"""How DeepSeek V4 keeps keys in vLLM's paged caches, and the rotary embedding applied before that.

Two page layouts exist; both hold the data of all entries of a page first, then the scales of all of them.

latent page (``fp8_ds_mla``)
    576 bytes of data an entry: 448 FP8 (e4m3) values without position, then 64 bfloat16 values with rotary
    position; 8 bytes of scales an entry: one power-of-two exponent (biased by 127) for each 64 FP8 values,
    and one unused byte.
indexer page
    128 FP8 values an entry; 4 bytes of scale an entry: one float32, a power of two.

A cache is given as ``[pages, bytes per page]`` uint8; pages may be further apart than they are long, since
vLLM interleaves the caches of several layers in one allocation.
"""

from __future__ import annotations

import torch

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
SMALLEST_SCALED_MAXIMUM = 1e-4  # below it the scale stays put, so that zeros do not give an infinite exponent

LATENT_DIM = 512
ROPE_DIM = 64
NOPE_DIM = LATENT_DIM - ROPE_DIM
LATENT_GROUP = 64  # values that share one scale
LATENT_GROUPS = NOPE_DIM // LATENT_GROUP
LATENT_DATA_BYTES = NOPE_DIM + 2 * ROPE_DIM
LATENT_SCALE_BYTES = 8
EXPONENT_BIAS = 127

INDEXER_DIM = 128
INDEXER_SCALE_BYTES = 4


def split_page(
    cache: torch.Tensor, page_entries: int, data: int, scale: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """View a paged cache as data and scales of single entries.

    Args:
        cache: uint8 ``[pages, bytes]``, last dimension contiguous.
        page_entries: entries in one page.
        data: bytes of data an entry.
        scale: bytes of scales an entry.

    Returns:
        Views ``[pages, page_entries, data]`` and ``[pages, page_entries, scale]`` of the same memory.
    """
    end = page_entries * data
    return (
        cache[:, :end].unflatten(1, (page_entries, data)),
        cache[:, end : end + page_entries * scale].unflatten(1, (page_entries, scale)),
    )


def distinct_slots(slots: torch.Tensor, num_slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """List the slots that occur, so that each is decoded once (by marking, which is faster than sorting).

    Args:
        slots: int64, any shape; -1 = none.
        num_slots: slots that the cache has.

    Returns:
        int64 ``[U]``, the slots in rising order, and int64 of the shape of ``slots``, the place of each in
        that list; -1 = none.
    """
    occurs = torch.zeros(num_slots + 1, dtype=torch.bool)
    occurs[slots] = True  # -1 marks the extra last place
    occurs[-1] = False
    used = occurs.nonzero().squeeze(-1)
    place = torch.full((num_slots + 1,), -1, dtype=torch.int64)
    place[used] = torch.arange(used.shape[0])
    return used, place[slots]


def power_of_two_exponent(maximum: torch.Tensor) -> torch.Tensor:
    """Find the smallest power of two that scales values into the range of FP8.

    Computed from the bits of the number, as a logarithm in float32 may miss exact powers of two.

    Args:
        maximum: float32, largest absolute value of each group.

    Returns:
        int32 of the same shape: ``ceil(log2(max(maximum, 1e-4) / 448))``.
    """
    mantissa, exponent = torch.frexp(maximum.clamp(min=SMALLEST_SCALED_MAXIMUM) / FP8_MAX)
    return torch.where(mantissa == 0.5, exponent - 1, exponent)


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """Compute ``2 ** exponent`` from the bits of a float, exactly (``torch.ldexp`` goes through ``pow``).

    Args:
        exponent: int32, clamped to the range of normal float32 numbers.

    Returns:
        float32 of the same shape.
    """
    return ((exponent.int().clamp(-126, 127) + 127) << 23).view(torch.float32)


def quantize(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise groups of values to FP8 with a power-of-two scale each; NaN and infinities become NaN.

    Args:
        values: float32 ``[..., group]``.

    Returns:
        FP8 ``[..., group]`` and the int32 exponents ``[..., 1]``; value = FP8 * 2 ** exponent.
    """
    exponent = power_of_two_exponent(values.abs().amax(-1, keepdim=True))
    scaled = (values * power_of_two(-exponent)).clamp(-FP8_MAX, FP8_MAX)
    return scaled.masked_fill(~values.isfinite(), torch.nan).to(FP8), exponent


def load_latents(cache: torch.Tensor, slots: torch.Tensor, page_entries: int) -> torch.Tensor:
    """Read entries of a latent cache.

    Args:
        cache: uint8 ``[pages, bytes]``.
        slots: int64 ``[N]``, all of them valid.
        page_entries: entries in one page.

    Returns:
        float32 ``[N, 512]``.
    """
    data, scales = split_page(cache, page_entries, LATENT_DATA_BYTES, LATENT_SCALE_BYTES)
    page, offset = slots // page_entries, slots % page_entries
    raw = data[page, offset]
    nope = raw[:, :NOPE_DIM].contiguous().view(FP8).float()
    rope = raw[:, NOPE_DIM:].contiguous().view(torch.bfloat16).float()
    exponent = scales[page, offset][:, :LATENT_GROUPS].int() - EXPONENT_BIAS
    nope = nope.unflatten(1, (LATENT_GROUPS, LATENT_GROUP)) * power_of_two(exponent).unsqueeze(-1)
    return torch.cat([nope.flatten(1), rope], dim=1)


def store_latents(cache: torch.Tensor, slots: torch.Tensor, page_entries: int, latents: torch.Tensor) -> None:
    """Write entries of a latent cache.

    Args:
        cache: uint8 ``[pages, bytes]``, changed in place.
        slots: int64 ``[N]``, all of them valid.
        page_entries: entries in one page.
        latents: float32 ``[N, 512]``, rotary position applied to the last 64 values.
    """
    data, scales = split_page(cache, page_entries, LATENT_DATA_BYTES, LATENT_SCALE_BYTES)
    page, offset = slots // page_entries, slots % page_entries
    nope, exponent = quantize(latents[:, :NOPE_DIM].unflatten(1, (LATENT_GROUPS, LATENT_GROUP)))
    rope = latents[:, NOPE_DIM:].to(torch.bfloat16).contiguous().view(torch.uint8)
    data[page, offset] = torch.cat([nope.flatten(1).view(torch.uint8), rope], dim=1)
    scale_bytes = torch.zeros(slots.shape[0], LATENT_SCALE_BYTES, dtype=torch.uint8)
    scale_bytes[:, :LATENT_GROUPS] = (exponent.squeeze(-1) + EXPONENT_BIAS).clamp(0, 255).to(torch.uint8)
    scales[page, offset] = scale_bytes


def load_indexer_keys(cache: torch.Tensor, slots: torch.Tensor, page_entries: int) -> torch.Tensor:
    """Read entries of an indexer cache.

    Args:
        cache: uint8 ``[pages, bytes]``.
        slots: int64 ``[N]``, all of them valid.
        page_entries: entries in one page.

    Returns:
        float32 ``[N, 128]``.
    """
    data, scales = split_page(cache, page_entries, INDEXER_DIM, INDEXER_SCALE_BYTES)
    page, offset = slots // page_entries, slots % page_entries
    return data[page, offset].view(FP8).float() * scales[page, offset].view(torch.float32)


def store_indexer_keys(
    cache: torch.Tensor, slots: torch.Tensor, page_entries: int, keys: torch.Tensor
) -> None:
    """Write entries of an indexer cache.

    Args:
        cache: uint8 ``[pages, bytes]``, changed in place.
        slots: int64 ``[N]``, all of them valid.
        page_entries: entries in one page.
        keys: float32 ``[N, 128]``, rotary position applied to the last 64 values.
    """
    data, scales = split_page(cache, page_entries, INDEXER_DIM, INDEXER_SCALE_BYTES)
    page, offset = slots // page_entries, slots % page_entries
    quantized, exponent = quantize(keys)
    data[page, offset] = quantized.view(torch.uint8)
    scales[page, offset] = power_of_two(exponent).view(torch.uint8)


def apply_rope(
    values: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor, inverse: bool = False
) -> torch.Tensor:
    """Rotate neighbouring pairs of values by their position's angles (GPT-J style).

    Args:
        values: float32 ``[N, ..., 64]``.
        cos_sin: float32 ``[positions, 64]``, 32 cosines then 32 sines of each position.
        positions: int64 ``[N]``.
        inverse: rotate back.

    Returns:
        float32, shape of ``values``: pair ``(a, b)`` becomes ``(a cos - b sin, b cos + a sin)``.
    """
    cos, sin = cos_sin[positions].float().chunk(2, dim=-1)
    middle = (1,) * (values.dim() - 2)
    cos = cos.view(cos.shape[0], *middle, cos.shape[1])
    sin = sin.view(cos.shape)
    if inverse:
        sin = -sin
    first, second = values[..., 0::2], values[..., 1::2]
    return torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)
