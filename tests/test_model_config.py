"""What a model's `config.json` contradicts, and what `qualify plan` shows without weights.

`data/deepseek-v4-flash.config.json` holds the figures of DeepSeek V4 Flash as `DeepseekV4Config` of
transformers 5.17 has them, and the layers' compress ratios as public descriptions give them: two layers
without, then 4 and 128 in turn, and the MTP layer without. It is not the file of the checkpoint.
"""

import json
import shutil
from pathlib import Path

import pytest

from qualify.cli.runs import plan_command
from qualify.errors import ExitCode, MachineryError, UsageError
from qualify.inputs import read_inputs
from tests.projects import ROOT

FLASH = ROOT / "images/ds4-flash"
CONFIG = ROOT / "tests/data/deepseek-v4-flash.config.json"


def plan(*arguments: str) -> int:
    return plan_command.main(list(arguments), standalone_mode=False)


@pytest.fixture
def project(tmp_path) -> Path:
    for folder in ("images/ds4-flash", "scenarios"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path / "images/ds4-flash"


RELEASES = sorted(path for path in FLASH.glob("*.yaml") if not path.stem.startswith("policy"))


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.stem)
def test_plan_shows_each_arm_without_weights(path, capsysbinary):
    assert plan(str(path), "--model-config", str(CONFIG)) == ExitCode.QUALIFIED
    shown = json.loads(capsysbinary.readouterr().out)
    assert shown["pinned"] is False
    assert [arm["arm"] for arm in shown["arms"]] == ["baseline", "candidate", "control"]
    baseline, candidate, control = shown["arms"]
    assert "--enforce-eager" in baseline["argv"]
    assert '"FULL_DECODE_ONLY"' in candidate["command"]
    assert ["DS4_FAULT", "packed-stride"] in control["environment"]
    for arm in shown["arms"]:
        ranks = next(word for word in arm["argv"] if word.startswith("--tensor-parallel-size="))
        assert ranks == f"--tensor-parallel-size={arm['gpus']}"
        mounts = {mount["target"]: mount["writable"] for mount in arm["mounts"]}
        assert mounts["/model"] is False
        assert mounts["/qualify/steps.jsonl"] is True
    assert ("--logits-processors" in baseline["command"]) is (path.stem != "mtp")


def test_missing_weights_are_said(project):
    with pytest.raises(UsageError) as caught:
        plan(str(project))
    assert "release.yaml:11:" in str(caught.value)
    assert "config.json is missing" in str(caught.value)
    assert "--model-config" in str(caught.value)


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "million.yaml",
            "1048576",
            "1048577",
            "million.yaml:7:3: max_model_len: 1048577 is more than the model's",
        ),
        (
            "tp8.yaml",
            "parallel-size: 8",
            "parallel-size: 3",
            "3 ranks do not divide the model's num_attention_heads",
        ),
        (
            "tp8.yaml",
            "parallel-size: 8",
            "parallel-size: 16",
            "16 ranks do not divide the model's o_groups of 8",
        ),
        ("tp8.yaml", "gpus: 8", "gpus: 4", "tp8.yaml:6:15: gpus: 4 GPUs for tensor-parallel-size of 8"),
        ("dcp2.yaml", "parallel-size: 2", "parallel-size: 3", "3 does not divide tensor-parallel-size of 4"),
        (
            "dcp2.yaml",
            "interleave-size: 1",
            "interleave-size: 4",
            "does not divide the 2 compressed entries of a page",
        ),
        ("release.yaml", "dtype: fp8", "dtype: bfloat16", "release.yaml:29:5: kv-cache-dtype: 'bfloat16'"),
        ("release.yaml", "block-size: 256", "block-size: 192", "192 tokens of a page are no multiple"),
        (
            "release.yaml",
            "replay: full-graph",
            "replay: full-graph\ncompress_ratio: 256",
            "has compress ratio 256",
        ),
        ("release.yaml", '"cudagraph_capture_sizes"', '"sizes', "compilation-config: is not a JSON object"),
        (
            "mtp.yaml",
            '"mtp"',
            '"dspark"',
            "mtp.yaml:8:5: speculative-config: method 'dspark' needs DSpark stages",
        ),
    ],
)
def test_what_contradicts_the_model_is_refused_with_its_line(project, file, old, new, said):
    path = project / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError) as caught:
        read_inputs(path, model_config=CONFIG)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("release.yaml", {"compress_ratios": None}, "no compress_ratios"),
        ("release.yaml", {"compress_ratios": [0, 4] * 22}, "has compress ratio 128, only 0, 4"),
        ("release.yaml", {"compress_ratios": [128]}, "1 compress_ratios for 43 layers"),
        ("release.yaml", {"model_type": "llama"}, "'llama' has no C128A layers"),
        ("release.yaml", {"max_position_embeddings": 65536}, "131072 is more than"),
        ("mtp.yaml", {"num_nextn_predict_layers": 0}, "needs MTP layers"),
        ("release.yaml", {"o_groups": "eight"}, "is no model configuration"),
    ],
)
def test_another_models_configuration_is_refused(tmp_path, file, change, said):
    other = tmp_path / "config.json"
    other.write_text(json.dumps(json.loads(CONFIG.read_text()) | change))
    with pytest.raises(UsageError) as caught:
        read_inputs(FLASH / file, model_config=other)
    assert said in str(caught.value)


@pytest.mark.parametrize("content", [b"{}", b'{"temperature": 1.0}', b'{"x":' + b"[" * 5000])
def test_what_says_nothing_of_a_model_is_no_pass(tmp_path, content):
    other = tmp_path / "generation_config.json"
    other.write_bytes(content)
    with pytest.raises(UsageError, match=r"generation_config\.json: is no model configuration"):
        read_inputs(FLASH / "mtp.yaml", model_config=other)


def test_configuration_is_for_local_models(tmp_path):
    with pytest.raises(UsageError, match="this one is made by its seed"):
        read_inputs(ROOT / "images/ds4-cpu", model_config=CONFIG)


def test_variant_is_the_other_file_with_its_values_changed():
    base, variant = (read_inputs(FLASH / name, model_config=CONFIG) for name in ("release.yaml", "tp2.yaml"))
    assert variant.release.serving.arguments == base.release.serving.arguments | {"tensor-parallel-size": 2}
    assert variant.release.arms == base.release.arms
    assert variant.texts["inputs/release.yaml"] == (FLASH / "tp2.yaml").read_text()
    assert variant.texts["inputs/release.base.yaml"] == (FLASH / "release.yaml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("variant_of: release.yaml", "variant_of: none.yaml", "tp2.yaml:2:1: variant_of:"),
        (
            "variant_of: release.yaml",
            "variant_of: ../ds4-flash/release.yaml",
            "not the name of a file in the same",
        ),
        ("variant_of: release.yaml", "variant_of: tp8.yaml", "tp8.yaml is no whole release"),
        ("variant_of: release.yaml", "variant_of: [1]", "not the name of a file"),
        ("container: {gpus: 2}", "container: {gpu: 2}", "tp2.yaml:6:15: unknown key 'serving.container.gpu'"),
        ("name: ds4-flash-tp2", "replay: slow", "tp2.yaml:3:1: replay:"),
    ],
)
def test_wrong_variants_are_refused_with_their_line(project, old, new, said):
    path = project / "tp2.yaml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UsageError) as caught:
        read_inputs(path, model_config=CONFIG)
    assert said in str(caught.value)


def test_problem_of_the_base_is_told_with_its_own_line(project):
    base = project / "release.yaml"
    base.write_text(base.read_text().replace("max_num_seqs: 16", "max_num_seqs: many"))
    with pytest.raises(UsageError, match=r"release\.yaml:26:3: serving.max_num_seqs"):
        read_inputs(project / "tp2.yaml", model_config=CONFIG)


def test_files_of_a_container_release_are_checked_without_an_engine(tmp_path, monkeypatch, capsysbinary):
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.chdir(tmp_path)
    image = ROOT / "images/ds4-cpu-image"
    assert plan(str(image), "--files-only") == ExitCode.QUALIFIED
    shown = json.loads(capsysbinary.readouterr().out)
    assert shown["pinned"] is False
    assert {arm["image"] for arm in shown["arms"]} == {"not composed yet"}
    assert {mount["source"] for arm in shown["arms"] for mount in arm["mounts"]} >= {"MODEL"}
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(MachineryError, match="no Docker engine answers"):
        plan(str(image))


def test_files_of_a_process_release_are_checked_without_its_interpreter(project, capsysbinary):
    assert plan(str(ROOT / "images/ds4-cpu"), "--files-only") == ExitCode.QUALIFIED
    assert b'"pinned": false' in capsysbinary.readouterr().out
    with pytest.raises(UsageError, match=r"config\.json is missing"):
        plan(str(project), "--files-only")
