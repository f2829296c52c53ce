"""The digest of the code that makes transcripts: what drives servers counts, what judges does not."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

import qualify
from qualify.harness import JUDGES_OR_REPORTS, harness_sha256

PACKAGE = Path(qualify.__file__).parent
# What serving uses of what does not count: types of figures that no server sees, and what the user is told.
SHARED = {"compare/figures.py", "reporting/plain.py", "reporting/progress.py"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PACKAGE, tmp_path / "qualify", ignore=shutil.ignore_patterns("__pycache__")))


def imported_by(module: Path) -> set[Path]:
    """The package's modules that one of them imports, at the top or within a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    files = (PACKAGE.parent.joinpath(*name.split(".")) for name in names if name.startswith("qualify"))
    return {
        path for file in files for path in (file.with_suffix(".py"), file / "__init__.py") if path.exists()
    }


def reached_from(*names: str) -> set[str]:
    """The package's modules that these need, themselves included, as paths below the package."""
    reached: set[Path] = set()
    left = {PACKAGE / name for name in names}
    while left:
        module = left.pop()
        reached.add(module)
        left |= imported_by(module) - reached
    return {path.relative_to(PACKAGE).as_posix() for path in reached}


def test_every_module_that_serving_needs_counts(copy: Path) -> None:
    before = harness_sha256(copy)
    needed = reached_from("serve.py", "planning.py") - SHARED
    assert {"serve.py", "steps.py", "traffic/driver.py", "serving/process.py", "jsonlines.py"} <= needed
    for name in sorted(needed):
        module = copy / name
        text = module.read_text()
        module.write_text(text + "\n# edited\n")
        assert harness_sha256(copy) != before, f"an edit of {name} leaves old transcripts valid"
        module.write_text(text)
    assert harness_sha256(copy) == before


def test_what_judges_or_reports_does_not_count(copy: Path) -> None:
    before = harness_sha256(copy)
    for name in JUDGES_OR_REPORTS:
        for module in (copy / name).rglob("*.py") if name.endswith("/") else [copy / name]:
            module.write_text(module.read_text() + "\n# edited\n")
    assert harness_sha256(copy) == before


def test_each_exception_is_there(copy: Path) -> None:
    assert [name for name in JUDGES_OR_REPORTS if not (copy / name).exists()] == []


def test_a_new_module_counts(copy: Path) -> None:
    before = harness_sha256(copy)
    (copy / "novelty.py").touch()
    assert harness_sha256(copy) != before
