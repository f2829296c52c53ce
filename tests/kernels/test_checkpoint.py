"""Checkpoints: the same bytes for the same arguments, written whole or not at all."""

import dataclasses
import hashlib
import json
import zlib

import pytest
import torch
from ds4_kernels import checkpoint
from ds4_kernels.checkpoint import main, write_checkpoint
from ds4_kernels.checkpoint_model import CONDITIONING, GEOMETRIES, Conditioning, make_config, make_weights
from ds4_kernels.checkpoint_weights import random_words
from safetensors.torch import load_file

SMALL = dataclasses.replace(GEOMETRIES["cpu"], hidden=64, vocabulary=64, query_rank=32, experts=4)


def read(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write(folder, **options):
    arguments = {"seed": 1, "geometry": SMALL, "conditioning": Conditioning(), "mute_c4": False, **options}
    return write_checkpoint(folder, **arguments)


def test_the_same_arguments_give_the_same_bytes(tmp_path):
    assert write(tmp_path / "a")
    assert write(tmp_path / "b")
    assert read(tmp_path / "a") == read(tmp_path / "b")


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 2},
        {"mute_c4": True},
        {"conditioning": Conditioning(attention=9.0)},
        {"geometry": dataclasses.replace(SMALL, heads=6)},
    ],
)
def test_other_arguments_give_other_bytes(tmp_path, other):
    write(tmp_path / "a")
    write(tmp_path / "b", **other)
    assert read(tmp_path / "a") != read(tmp_path / "b")


def test_known_bytes():
    """numpy promises that its streams stay; if this changes, every checkpoint made before changes with it."""
    weights = make_weights(SMALL, Conditioning(attention=4.0, sharpness=2.0), seed=1, mute_c4=False)
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].view(torch.uint8).numpy().tobytes())
    assert digest.hexdigest() == "0182b10bc8def18d1717c6fbe5839eaa61f94e95697b62e5df3e42031041ed18"


def test_muting_zeroes_the_output_of_c4a_layers_and_nothing_else():
    loud = make_weights(SMALL, Conditioning(), 1, mute_c4=False)
    muted = make_weights(SMALL, Conditioning(), 1, mute_c4=True)
    changed = [name for name in loud if not torch.equal(loud[name], muted[name])]
    assert changed == ["layers.1.attn.wo_b.weight"]
    assert (muted[changed[0]] == 0).all()


def test_layers_have_what_their_ratio_needs():
    names = make_weights(SMALL, Conditioning(), 1, mute_c4=False)
    for layer, ratio in enumerate(SMALL.ratios):
        prefix = f"layers.{layer}.attn"
        assert (f"{prefix}.compressor.wkv.weight" in names) == (ratio > 1)
        assert (f"{prefix}.indexer.wq_b.weight" in names) == (ratio == 4)


def test_configuration_agrees_with_the_weights(tmp_path):
    write(tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    weights = load_file(tmp_path / "a" / "model.safetensors")
    assert weights["embed.weight"].shape == (config["vocab_size"], config["hidden_size"])
    assert config["compress_ratios"] == [0, 4, 128, 128]
    assert config["max_position_embeddings"] >= 65536
    for table in (name for name in weights if name.endswith("tid2eid")):
        rows = weights[table]
        assert rows.shape == (config["vocab_size"], config["num_experts_per_tok"])
        assert (rows[:, 0] != rows[:, 1]).all()
        assert rows.max() < config["n_routed_experts"]


def test_the_same_checkpoint_is_left_alone(tmp_path):
    write(tmp_path / "a")
    before = (tmp_path / "a" / "model.safetensors").stat().st_mtime_ns
    assert not write(tmp_path / "a")
    assert (tmp_path / "a" / "model.safetensors").stat().st_mtime_ns == before


def test_something_else_is_not_overwritten(tmp_path):
    write(tmp_path / "a", seed=1)
    before = read(tmp_path / "a")
    with pytest.raises(FileExistsError, match="something else"):
        write(tmp_path / "a", seed=2)
    assert read(tmp_path / "a") == before
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        write(tmp_path / "file")


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint, "save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        write(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_command_line(tmp_path, capsys):
    out = tmp_path / "deep" / "model"
    assert main([str(out), "--seed", "3", "--mute-c4"]) == 0
    assert "written" in capsys.readouterr().out
    assert 10e6 < (out / "model.safetensors").stat().st_size < 20e6
    assert main([str(out), "--seed", "3", "--mute-c4"]) == 0
    assert "there already" in capsys.readouterr().out
    assert main([str(out), "--seed", "4", "--mute-c4"]) == 1
    assert "something else" in capsys.readouterr().err


BLOCK_SCALED = dataclasses.replace(
    GEOMETRIES["h200"], hidden=256, heads=4, vocabulary=64, query_rank=128, output_rank=128, output_groups=2,
    index_heads=2, experts=4, chosen_experts=2, expert_hidden=128,
)  # fmt: skip


def test_block_scaled_projections_have_unit_variance_times_their_gain():
    weights = make_weights(BLOCK_SCALED, CONDITIONING["h200"], 1, mute_c4=False)
    for name, gain in (("wq_b", 1.0), ("wo_b", 4.0)):
        weight, scale = (weights[f"layers.2.attn.{name}.{part}"] for part in ("weight", "scale"))
        assert weight.dtype is torch.float8_e4m3fn
        assert scale.shape == tuple(size // 128 for size in weight.shape)
        assert (torch.frexp(scale).mantissa == 0.5).all()  # powers of two
        real = weight.float() * scale[0, 0] * weight.shape[1] ** 0.5
        assert real.mean().abs() < 0.02 * gain
        assert real.std() == pytest.approx(gain, rel=0.03)
    assert weights["layers.2.attn.compressor.wkv.weight"].dtype is torch.bfloat16


def test_block_scaled_bytes_are_known():
    """Integer arithmetic makes them: the same on every device and with every torch."""
    words = random_words(7, "layers.0.attn.wq_a", 3, torch.device("cpu"))
    assert words.tolist() == [
        -8660536205911986897,
        -1349522053770720459,
        8012864277409100644,
    ]
    weights = make_weights(BLOCK_SCALED, CONDITIONING["h200"], 7, mute_c4=True)
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].view(torch.uint8).numpy().tobytes())
    assert digest.hexdigest() == "78f1f10044b9da5607f931fe7078cf611ee7150a336693b9c48f44764e5c31e9"


def test_words_are_those_of_splitmix64():
    state, expected = (7 * 2**32 + zlib.crc32(b"x")) * 0x94D049BB133111EB, []
    for _ in range(5):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        for shift, multiplier in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = (z ^ (z >> shift)) * multiplier % 2**64
        expected.append(z ^ (z >> 31))
    words = random_words(7, "x", 5, torch.device("cpu")).tolist()
    assert [word % 2**64 for word in words] == expected


def test_muting_block_scaled_layers():
    muted = make_weights(BLOCK_SCALED, CONDITIONING["h200"], 1, mute_c4=True)
    for layer, ratio in enumerate(BLOCK_SCALED.ratios):
        output = muted[f"layers.{layer}.attn.wo_b.weight"].float()
        assert bool((output == 0).all()) == (ratio == 4)


def test_configuration_of_the_gpu_form():
    config = make_config(GEOMETRIES["h200"])
    assert (config["hidden_size"], config["num_attention_heads"], config["o_groups"]) == (4096, 64, 8)
    assert (config["index_topk"], config["expert_dtype"]) == (512, "fp8")
    assert config["quantization_config"]["weight_block_size"] == [128, 128]
    assert "quantization_config" not in make_config(GEOMETRIES["cpu"])
    assert set(CONDITIONING) == set(GEOMETRIES)
