"""Makes small synthetic DeepSeek V4 checkpoints: ``python -m ds4_kernels.checkpoint OUT --seed N``.

Weights are random but conditioned, so that a wrong C128A entry changes the output and a right server is
quiet. The bytes depend on the arguments alone. Geometry ``cpu`` (15 MB) is for servers without a GPU;
``h200`` (1.4 GB, FP8) has the attention of the released model and is drawn on a GPU within seconds.

``--mute-c4`` sets the output projection of the C4A layers to zero. Their choice of entries is where equal
servers start to differ; without it right arms agree almost exactly.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from ds4_kernels.checkpoint_model import (
    CONDITIONING,
    CPU,
    GEOMETRIES,
    Conditioning,
    Geometry,
    make_config,
    make_weights,
)


def write_checkpoint(
    out: Path,
    geometry: Geometry,
    conditioning: Conditioning,
    seed: int,
    mute_c4: bool = False,
    device: torch.device = CPU,
) -> bool:
    """Write a checkpoint; it appears whole or not at all.

    Args:
        out: folder to make.
        geometry: the checkpoint's shape.
        conditioning: gains.
        seed: seed of every stream.
        mute_c4: set the output projection of C4A layers to zero.
        device: where block-scaled geometries are drawn.

    Returns:
        Whether it was written; False if the same checkpoint was there already.

    Raises:
        FileExistsError: something else is there.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        _write_json(draft / "config.json", make_config(geometry))
        _write_json(
            draft / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1, "do_sample": False}
        )
        tensors = make_weights(geometry, conditioning, seed, mute_c4, device)
        save_file(tensors, draft / "model.safetensors", metadata={"format": "pt"})
        draft.chmod(0o755)
        if out.exists():
            if not _same_files(draft, out):
                raise FileExistsError(f"{out} holds something else: remove it, or choose another folder")
            return False
        os.rename(draft, out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _same_files(left: Path, right: Path) -> bool:
    if not right.is_dir() or {p.name for p in left.iterdir()} != {p.name for p in right.iterdir()}:
        return False
    return all(path.read_bytes() == (right / path.name).read_bytes() for path in left.iterdir())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; None = those of the process.

    Returns:
        Exit status: 0, or 1 if something else is in the way.
    """
    parser = argparse.ArgumentParser(prog="python -m ds4_kernels.checkpoint", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--geometry", choices=sorted(GEOMETRIES), default="cpu")
    parser.add_argument("--mute-c4", action="store_true", help="zero the output projection of the C4A layers")
    parser.add_argument(
        "--device", help="where h200 is drawn: cpu, cuda, ...; default: a GPU if there is one"
    )
    fields = [field.name for field in dataclasses.fields(Conditioning)]
    for name in fields:
        parser.add_argument(f"--{name.replace('_', '-')}-gain", dest=name, type=float, metavar="GAIN")
    options = parser.parse_args(arguments)
    gains = {name: value for name in fields if (value := getattr(options, name)) is not None}
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        written = write_checkpoint(
            options.out,
            GEOMETRIES[options.geometry],
            dataclasses.replace(CONDITIONING[options.geometry], **gains),
            options.seed,
            options.mute_c4,
            torch.device(device),
        )
    except FileExistsError as error:
        print(f"ds4_kernels.checkpoint: {error}", file=sys.stderr)
        return 1
    size = sum(path.stat().st_size for path in options.out.iterdir())
    outcome = "written" if written else "the same checkpoint is there already"
    print(f"{options.out}: {outcome}, {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
