"""What is imported is declared: nothing is here only because another library happens to bring it along."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"qualify", "tests", "ds4_kernels", "suite"}
# Installed by make test-browser only, and in the serving environments, whose tests import them.
ELSEWHERE = {"axe_playwright_python", "playwright", "torch", "triton", "vllm", "safetensors"}
WITHIN_PYDANTIC = {"pydantic_core"}  # pydantic pins its exact version, and documents errors of it


def imported(folder: Path) -> set[str]:
    names: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
    return {name.split(".")[0] for name in names} - OURS - sys.stdlib_module_names


def named(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~! ;]", line)[0].lower().replace("_", "-") for line in requirements}


@pytest.mark.parametrize(
    ("folder", "with_dev", "excused"),
    [("qualify", False, WITHIN_PYDANTIC), ("tests", True, ELSEWHERE)],
)
def test_every_library_that_is_imported_is_declared(folder: str, with_dev: bool, excused: set[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = named(project["project"]["dependencies"])
    if with_dev:
        declared |= named(project["dependency-groups"]["dev"])
    providers = importlib.metadata.packages_distributions()
    undeclared = {
        name
        for name in imported(ROOT / folder) - excused
        if not {item.lower().replace("_", "-") for item in providers.get(name, ())} & declared
    }
    assert undeclared == set()


def test_the_harness_imports_no_framework_that_serves() -> None:
    assert imported(ROOT / "qualify") & {"torch", "vllm"} == set()
