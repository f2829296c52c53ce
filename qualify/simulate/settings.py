"""The settings that `make simulate` runs."""

from __future__ import annotations

from itertools import product

from qualify.simulate.recorded import fault_sizes
from qualify.simulate.trials import Setting
from qualify.simulate.worlds import NO_FAULT, PACKED, Batch, Fault, Load, Noise, Recorded, Synthetic, World

DEFAULT = Load((Batch("short8", 8, 2), Batch("short16", 16, 1), Batch("mid4", 4, 4)))
"""Three scenarios of 16 requests, 40 tokens, two baseline runs: about what the recorded sets hold."""

SMALL = Load((Batch("short8", 8, 1),))
THREE = Load(DEFAULT.batches, baselines=3)

QUIET = {
    "a ten-thousandth of the noise": Noise(factor=1e-4),
    "a 50th of the noise, where it begins to matter": Noise(factor=0.02),
    "a 500th of the noise, heavier tails (3 degrees)": Noise(factor=0.002, degrees=3),
    "a 500th of it in 1 of 200 positions (3 degrees)": Noise(factor=0.002, degrees=3, quiet=0.995),
}
"""Noise that matters nowhere, or hardly anywhere: the floor is quiet in many runs and noisy in the others."""

SPARSE = Fault(row=15, every=8)
"""One row of 16, every 8th step."""

ROUNDS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
BASELINES = (2, 3, 4, 6)
TOKENS = (16, 32, 64)
USUAL_TOKENS = 32


def right_settings(recorded: Recorded) -> list[Setting]:
    """Candidates without a fault: none may be rejected."""
    sizes = fault_sizes(recorded)
    noises = {
        "noise as recorded, modelled": Noise(),
        "10 times the noise": Noise(factor=10),
        "a tenth of the noise": Noise(factor=0.1),
        "heavier tails (Student's t, 4 degrees)": Noise(degrees=4),
        "still heavier tails (3 degrees)": Noise(degrees=3),
        "noise of its own for each run and request": Noise(request_spread=0.7),
        "jumps of a fault's size, 1 in 2,000 positions": Noise(jumps=0.0005),
        "lasting moves, 1 in 2,000 positions": Noise(lasting=0.0005),
        **QUIET,
    }
    found: list[tuple[str, World, Load]] = [
        ("recorded runs, resampled", recorded, DEFAULT),
        ("recorded runs, 8 requests only", recorded, SMALL),
        ("recorded runs, three baseline runs", recorded, THREE),
        *((name, Synthetic(noise, sizes), DEFAULT) for name, noise in noises.items()),
    ]
    return [Setting(name, world, load, NO_FAULT, seed) for seed, (name, world, load) in enumerate(found, 100)]


def beyond_settings(recorded: Recorded) -> list[Setting]:
    """What breaks the premise of exact mode: a server that is quiet almost, but not quite, always."""
    sizes = fault_sizes(recorded)
    almost = Synthetic(Noise(quiet=0.9998), sizes)
    jumping = Synthetic(Noise(factor=1e-4, jumps=0.0002), sizes)
    return [
        Setting("noise in 1 of 5,000 positions, else exact", almost, DEFAULT, NO_FAULT, 200),
        Setting("the same, six baseline runs", almost, Load(DEFAULT.batches, baselines=6), NO_FAULT, 201),
        Setting(
            "a ten-thousandth of the noise, jumps in 1 of 5,000 positions", jumping, DEFAULT, NO_FAULT, 202
        ),
    ]


def faulty_settings(recorded: Recorded) -> list[Setting]:
    """Candidates with a fault: they should be rejected."""
    sizes = fault_sizes(recorded)
    found: list[tuple[str, World, Load, Fault]] = [
        *(
            (f"packed stride on {share:.0%} of the rows", recorded, DEFAULT, Fault(share=share))
            for share in (0.01, 0.03, 0.10, 0.50, 1.0)
        ),
        ("packed stride, last row of each batch only", recorded, DEFAULT, Fault(last_row_only=True)),
        ("packed stride, every 8th step", recorded, DEFAULT, Fault(every=8)),
        ("last row only, every 8th step", recorded, DEFAULT, Fault(last_row_only=True, every=8)),
        ("packed stride, 8 requests only", recorded, SMALL, PACKED),
        ("packed stride, 10 times the noise", Synthetic(Noise(factor=10), sizes), DEFAULT, PACKED),
        ("packed stride, heavier tails (4 degrees)", Synthetic(Noise(degrees=4), sizes), DEFAULT, PACKED),
        ("packed stride, a tenth of the noise", Synthetic(Noise(factor=0.1), sizes), DEFAULT, PACKED),
        *(
            (f"packed on 3% of the rows, {name}", Synthetic(noise, sizes), DEFAULT, Fault(share=0.03))
            for name, noise in QUIET.items()
        ),
    ]
    return [
        Setting(name, world, load, fault, seed) for seed, (name, world, load, fault) in enumerate(found, 300)
    ]


def curve_settings(recorded: Recorded) -> dict[tuple[int, int, int], Setting]:
    """One row of 16, every 8th step, by (baseline runs, tokens, rounds)."""
    world = Synthetic(Noise(), fault_sizes(recorded))
    chosen = [(runs, USUAL_TOKENS) for runs in BASELINES] + [(3, tokens) for tokens in TOKENS]
    return {
        (runs, tokens, rounds): Setting(
            f"{runs} baseline runs, {tokens} tokens, {rounds} rounds",
            world,
            Load((Batch("sixteen", 16, rounds),), tokens=tokens, baselines=runs),
            SPARSE,
            400,
        )
        for (runs, tokens), rounds in product(dict.fromkeys(chosen), ROUNDS)
    }
