"""Which way dependencies point, as docs/design.md says, through every module that is needed on the way."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READS_FILES = {"msgspec", "pydantic", "pydantic_core", "yaml"}
ENGINES = {"docker", "openai", "torch", "vllm", "ds4_kernels"}


@cache
def imported_by(file: Path) -> frozenset[str]:
    """Modules that one file imports, at the top or within a function, and what they may be submodules of."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return frozenset(names)


def file_of(module: str) -> Path | None:
    place = ROOT.joinpath(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()), None)


def modules(*patterns: str) -> set[str]:
    files = (file for pattern in patterns for file in (ROOT / "qualify").glob(pattern))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files}


def needs(start: Iterable[str]) -> tuple[set[str], set[str]]:
    """Our modules and others' libraries that these need, directly or not."""
    ours: set[str] = set()
    others: set[str] = set()
    left = set(start)
    while left:
        module = left.pop()
        if module.split(".")[0] != "qualify":
            others.add(module.split(".")[0])
        elif (file := file_of(module)) is not None:
            ours.add(module)
            left |= imported_by(file) - ours
    return ours, others - sys.stdlib_module_names


def test_deciding_needs_values_only() -> None:
    ours, others = needs(modules("gate.py", "compare/**/*.py"))
    assert {"qualify.gate", "qualify.compare.coverage.limits", "qualify.compare.rules"} <= ours
    assert others <= READS_FILES | {"numpy", "scipy"}
    assert (
        ours & modules("serving/**/*.py", "images/**/*.py", "registry/**/*.py", "evidence/recording.py")
        == set()
    )


def test_judging_a_bundle_needs_no_engine_no_client_and_no_framework() -> None:
    ours, others = needs(["qualify.judging"])
    assert others & ENGINES == set()
    assert ours & modules("traffic/**/*.py", "images/**/*.py", "reporting/**/*.py", "serve.py") == set()


@pytest.mark.parametrize("layer", ["traffic", "serving", "scenario", "registry"])
def test_what_does_knows_nothing_of_what_decides(layer: str) -> None:
    ours, _ = needs(modules(f"{layer}/**/*.py"))
    assert (
        ours & (modules("reporting/**/*.py", "gate.py", "judging.py", "compare/rules.py", "cli/**/*.py"))
        == set()
    )


@pytest.mark.parametrize(
    ("module", "users"),
    [
        ("qualify.cli", ("qualify.cli", "qualify.__main__")),
        ("qualify.pipeline", ("qualify.cli",)),
        ("qualify.serve", ("qualify.pipeline",)),
    ],
)
def test_a_step_is_used_by_the_one_above_it_only(module: str, users: tuple[str, ...]) -> None:
    using = {
        name
        for name in modules("**/*.py")
        if (file := file_of(name)) is not None
        and any(needed == module or needed.startswith(f"{module}.") for needed in imported_by(file))
    }
    assert using, f"nothing uses {module}"
    assert {name for name in using if not name.startswith(users)} == set()


def test_harness_and_kernels_do_not_import_each_other() -> None:
    _, others = needs(modules("**/*.py"))
    assert others & {"torch", "vllm", "ds4_kernels"} == set()
    kernels = (file for file in (ROOT / "kernels/ds4_kernels").rglob("*.py"))
    assert [
        str(file) for file in kernels if any(name.startswith("qualify") for name in imported_by(file))
    ] == []
