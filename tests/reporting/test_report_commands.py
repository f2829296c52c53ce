"""`qualify export` and `compare-runs` on bundles of real runs, and `--help` of everything."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import click
import pytest

from qualify.cli.main import SECTIONS, cli
from tests.projects import ENVIRONMENT

ARCHIVE = Path(__file__).parents[2] / "reports/evidence/h200/exact.tar.xz"
RIGHT = "ds4-h200-20261201T103315690298-57befde0"
PACKED = "ds4-h200-packed-20261201T103826517967-d4977250"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundles")
    with tarfile.open(ARCHIVE) as archive:
        wanted = [item for item in archive.getmembers() if item.name.split("/")[0] in (RIGHT, PACKED)]
        archive.extractall(directory, members=wanted, filter="data")
    return directory


def qualify(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qualify", *map(str, words)],
        env=ENVIRONMENT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_two_releases_are_compared(bundles: Path) -> None:
    text = qualify("compare-runs", bundles / RIGHT, bundles / PACKED)
    assert text.returncode == 0, text.stderr
    lines = {line.strip("* "): line for line in text.stdout.splitlines()}
    (verdict,) = [line for name, line in lines.items() if name.startswith("run: verdict")]
    assert verdict.split() == ["*", "run:", "verdict", "qualified", "rejected"]
    assert "04b9fd7a7f9a8adadb6c0d3cce83" in text.stdout
    assert "findings only in B" in text.stdout
    assert "\x1b" not in text.stdout
    told = qualify("compare-runs", bundles / RIGHT, bundles / PACKED, "--format", "json")
    assert told.returncode == 0
    rows = {(row["section"], row["name"]): row for row in json.loads(told.stdout)["rows"]}
    assert rows["candidate", "positions that differ"]["second"] == 832
    assert rows["speed", "candidate: tokens/s"]["changed"]
    assert not rows["floor", "exactly zero"]["changed"]


def test_the_export_tells_the_verdict_and_exits_with_it(bundles: Path) -> None:
    right, packed = qualify("export", bundles / RIGHT), qualify("export", bundles / PACKED)
    assert (right.returncode, packed.returncode) == (0, 1)
    told = json.loads(right.stdout)
    assert (told["status"], told["gpu_ids"], told["image"]) == ("qualified", ["0"], None)
    assert json.loads(packed.stdout)["status"] == "rejected"
    manifest = json.loads((bundles / RIGHT / "manifest.json").read_bytes())
    assert {item["path"]: item["sha256"] for item in told["artifacts"]} == manifest


@pytest.mark.parametrize("harm", ["changed", "extra", "unsealed"])
def test_a_bundle_that_is_not_whole_is_refused(harm: str, bundles: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    with tarfile.open(ARCHIVE) as archive:
        wanted = [item for item in archive.getmembers() if item.name.split("/")[0] == PACKED]
        archive.extractall(broken, members=wanted, filter="data")
    bundle = broken / PACKED
    if harm == "changed":
        (bundle / "arms/candidate/arm.json").write_text("{}")
    elif harm == "extra":
        (bundle / "another.json").write_text("{}")
    else:
        (bundle / "manifest.json").unlink()
    for words in (("compare-runs", bundles / RIGHT, bundle), ("export", bundle)):
        done = qualify(*words)
        assert done.returncode == 3
        assert done.stdout == ""
        assert str(bundle) in done.stderr
        assert "Traceback" not in done.stderr


COMMANDS = sorted(cli.commands)


def test_every_command_stands_in_one_section_of_the_help() -> None:
    listed = [str(command.name) for commands in SECTIONS.values() for command in commands]
    assert sorted(listed) == COMMANDS
    shown = cli.get_help(click.Context(cli, info_name="qualify"))
    for name in COMMANDS:
        assert f"\n  {name} " in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help(name: str) -> None:
    command = cli.commands[name]
    assert command.help
    assert len(command.help.split(".")[0]) < 110, "the first sentence stands in the list of commands"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.opts
            assert parameter.help.endswith((".", "]")), f"{parameter.opts}: {parameter.help}"
        else:
            metavar = parameter.make_metavar(click.Context(command)).strip("[].")
            assert metavar in command.help, f"{metavar} is not explained"
