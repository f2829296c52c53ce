from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from qualify.cli.coverage import coverage_command
from qualify.errors import EvidenceError, UsageError
from qualify.gate import judge
from qualify.reporting.coverage_tables import coverage_document
from qualify.requirements import Requirements
from tests.judgefactory import POLICY, World, build

ROOT = Path(__file__).parents[2]
LIVE = ROOT / "reports/evidence/h200/live.tar.xz"


def test_required_cells_say_whether_they_were_reached_and_scenarios_what_they_met() -> None:
    record = build(World(scenarios={"eight": 8, "four": 4}, tokens=6))
    asked = replace(record.scenarios[0], requires=Requirements(rows=(8,), preemptions=2))
    record = replace(record, scenarios=(asked, *record.scenarios[1:]))
    text = coverage_document([("some-bundle", record, judge(record, POLICY, ""))])
    assert "## test: inconclusive" in text
    assert "| eight: rows in a decode step | 8 | 8: reached | step log |" in text
    assert "| eight: preemptions | 0 | at least 2: **missed** | step log |" in text
    assert "| eight | 8 | 8 (5) |" in text
    assert "| four | 4 | 4 (5) |" in text
    plain = replace(record, steps={})
    assert "By scenario" not in coverage_document([("b", plain, judge(plain, POLICY, ""))])


def test_what_a_server_said_is_no_markup() -> None:
    record = build(World(scenarios={"eight": 8}, tokens=6))
    verdict = judge(record, POLICY, "")
    cell = replace(verdict.coverage[0], reached="a|b\n<script>")
    text = coverage_document([("b", record, replace(verdict, coverage=(cell,)))])
    assert "a\\|b \\<script\\>" in text


def test_an_archive_of_bundles_is_read() -> None:
    done = CliRunner().invoke(coverage_command, [str(LIVE)])
    assert done.exit_code == 0, done.output
    assert "## ds4-h200-live: qualified" in done.output
    table = done.output[done.output.index("## ds4-h200-live") :].rstrip()
    assert table in (ROOT / "docs/coverage.md").read_text(), "make the page again, as the README says"
    assert "| replays in the baseline | 0 of 1453 steps | none: reached | step log |" in done.output


def packed(path: Path, *names: str) -> Path:
    """An archive of bundles, each a copy of one of the recorded ones under another name."""
    with tarfile.open(LIVE) as source, tarfile.open(path, "w:xz", preset=0) as target:
        members = source.getmembers()
        for member in members:
            for name in names:
                renamed = member.replace(name=f"{name}/{member.name.partition('/')[2]}".rstrip("/"))
                target.addfile(renamed, source.extractfile(member) if member.isreg() else None)
    return path


def test_archives_of_one_name_are_not_mixed(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        packed(tmp_path / folder / "x.tar.xz", f"of-{folder}")
    paths = [str(tmp_path / folder / "x.tar.xz") for folder in ("a", "b")]
    done = CliRunner().invoke(coverage_command, paths)
    assert done.exit_code == 0, done.output
    titles = [line for line in done.output.splitlines() if line.startswith("Bundle `")]
    assert titles == ["Bundle `of-a`.", "Bundle `of-b`."]


def test_a_damaged_bundle_in_an_archive_is_named_by_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        archive.addfile(tarfile.TarInfo("one/plan.json"))
    with pytest.raises(EvidenceError, match=r"^\S+/x\.tar\.xz/one/plan\.json: is not what"):
        CliRunner().invoke(coverage_command, [str(path)], catch_exceptions=False)


@pytest.mark.parametrize("members", [(), ("note.txt",)])
def test_an_archive_without_a_bundle_is_no_success(tmp_path: Path, members: tuple[str, ...]) -> None:
    path = tmp_path / "empty.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        for member in members:
            archive.addfile(tarfile.TarInfo(member))
    with pytest.raises(EvidenceError, match=r"empty\.tar\.xz: holds no bundle"):
        CliRunner().invoke(coverage_command, [str(path)], catch_exceptions=False)


@pytest.mark.parametrize("kept", [0.5, 0.99])
def test_a_broken_download_is_damaged_evidence(tmp_path: Path, kept: float) -> None:
    content = LIVE.read_bytes()
    path = tmp_path / "cut.tar.xz"
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(EvidenceError, match=r"cut\.tar\.xz: cannot be unpacked"):
        CliRunner().invoke(coverage_command, [str(path)], catch_exceptions=False)
    path.write_bytes(content[:5000] + bytes(40) + content[5040:])
    with pytest.raises(EvidenceError, match=r"cut\.tar\.xz: cannot be unpacked"):
        CliRunner().invoke(coverage_command, [str(path)], catch_exceptions=False)


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("verdict.json", UsageError, "neither a bundle nor an archive"),
        ("cut.tar.xz", EvidenceError, "cannot be unpacked"),
    ],
)
def test_what_is_no_bundle_is_refused(tmp_path: Path, name: str, error: type[Exception], said: str) -> None:
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(error, match=said):
        coverage_command.main([str(tmp_path / name)], standalone_mode=False)
