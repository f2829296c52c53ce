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
RIGHT, PACKED = "ds4-h200", "ds4-h200-packed"


def unpack(directory: Path, *releases: str) -> Path:
    """Unpacks the bundles of some releases, each into a directory of the release's name."""
    with tarfile.open(ARCHIVE) as archive:
        for member in archive.getmembers():
            bundle, _, rest = member.name.partition("/")
            # a bundle's name ends with date and plan
            if (release := bundle.rsplit("-", 2)[0]) in releases:
                archive.extract(member.replace(name=f"{release}/{rest}"), directory, filter="data")
    return directory


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("bundles"), RIGHT, PACKED)


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
    assert "findings only in B" in text.stdout
    assert "\x1b" not in text.stdout
    told = qualify("compare-runs", bundles / RIGHT, bundles / PACKED, "--format", "json")
    assert told.returncode == 0
    rows = {(row["section"], row["name"]): row for row in json.loads(told.stdout)["rows"]}
    assert rows["candidate", "positions that differ"]["second"] == 832
    assert rows["speed", "candidate: tokens/s"]["changed"]
    subject = json.loads((bundles / PACKED / "plan.json").read_bytes())["subject"]
    assert rows["run", "subject"]["second"] == subject
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
    bundle = unpack(tmp_path, PACKED) / PACKED
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
