"""Checkpoints: the same bytes for the same arguments, written whole or not at all."""

import dataclasses
import hashlib
import json

import pytest
import torch
from ds4_kernels import checkpoint
from ds4_kernels.checkpoint import main, write_checkpoint
from ds4_kernels.checkpoint_model import GEOMETRIES, Conditioning, make_weights
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
