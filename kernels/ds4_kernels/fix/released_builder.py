"""Putting another release's C128A metadata builder into the vLLM that serves.

Where a release cannot be run as it shipped, because its torch is not to be had, its function is run inside a
release that can::

    DS4_RELEASED_BUILDER=.cache/vllm-sources/0.27.1/vllm/models/deepseek_v4/sparse_mla.py
    DS4_RELEASED_BUILDER_SHA256=cdd9d7be...

The module's file is executed as the release ships it; what it imports is the installed vLLM's. Its function,
the Triton kernel that it launches, and the method that calls it and chooses the width replace the installed
ones; everything else stays. The digest is asked for, so that the environment alone pins what serves.
"""

from __future__ import annotations

import builtins
import dis
import hashlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ds4_kernels.fix.signature import UnrecognisedBuilderError
from ds4_kernels.fix.stride import BUILDER_FUNCTION, BUILDER_METHOD, modules_holding, owner_of_builder

FILE_VARIABLE = "DS4_RELEASED_BUILDER"
DIGEST_VARIABLE = "DS4_RELEASED_BUILDER_SHA256"
_LOADED_AS = "ds4_kernels_released_builder"


@dataclass(frozen=True)
class ReleasedBuilder:
    """The file of another release's builder.

    Attributes:
        path: the module's file.
        sha256: digest of its bytes, hexadecimal.
    """

    path: Path
    sha256: str

    def __str__(self) -> str:
        return f"C128A metadata builder taken from {self.path}, sha256:{self.sha256}"


def read_released_builder(environment: Mapping[str, str]) -> ReleasedBuilder | None:
    """Read which release's builder is wanted.

    Args:
        environment: the process's environment.

    Returns:
        The file, its digest checked; None if none is named.

    Raises:
        ValueError: only one of the two variables is set, there is no such file, or its bytes are others.
    """
    name, expected = environment.get(FILE_VARIABLE, ""), environment.get(DIGEST_VARIABLE, "")
    if not name and not expected:
        return None
    if not (name and expected):
        raise ValueError(f"{FILE_VARIABLE} and {DIGEST_VARIABLE} belong together: set both or none")
    path = Path(name)
    if not path.is_file():
        raise ValueError(
            f"{FILE_VARIABLE}={name}: no such file; `make contracts-released CONTRACTS_ARGS='--version V'` "
            "keeps the sources of release V under .cache/vllm-sources/V"
        )
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != expected:
        raise ValueError(f"{FILE_VARIABLE}={name}: its sha256 is {found}, {DIGEST_VARIABLE} says {expected}")
    return ReleasedBuilder(path, found)


def install_released_builder(module: ModuleType, released: ReleasedBuilder) -> None:
    """Replace the installed builder by another release's; do so before the stride fix looks at it.

    Args:
        module: the module of the installed vLLM that holds the builder.
        released: where the other one is.

    Raises:
        UnrecognisedBuilderError: the file has no builder, cannot be executed beside the installed vLLM, has
            other parameters, or its caller uses what the installed module lacks.
    """
    other = _execute(released)
    function = getattr(other, BUILDER_FUNCTION, None)
    if function is None:
        raise UnrecognisedBuilderError(f"{released.path} defines no {BUILDER_FUNCTION}")
    original = getattr(module, BUILDER_FUNCTION)
    if list(inspect.signature(function).parameters) != list(inspect.signature(original).parameters):
        raise UnrecognisedBuilderError(
            f"{released.path}: its {BUILDER_FUNCTION} has other parameters than that of {module.__name__}"
        )
    method = _among(module, getattr(owner_of_builder(other), BUILDER_METHOD), released.path)
    setattr(owner_of_builder(module), BUILDER_METHOD, method)
    for holder in modules_holding(original):
        setattr(holder, BUILDER_FUNCTION, function)


def _execute(released: ReleasedBuilder) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_LOADED_AS, released.path)
    if spec is None or spec.loader is None:
        raise UnrecognisedBuilderError(f"{released.path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_LOADED_AS] = module  # dataclasses look their module up while they are made
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the file's own code runs here and can fail in any way
        del sys.modules[_LOADED_AS]
        raise UnrecognisedBuilderError(
            f"{released.path} cannot be executed beside the installed vLLM: {error!r}"
        ) from error
    return module


def _among(module: ModuleType, method: types.FunctionType, path: Path) -> types.FunctionType:
    """Give a method the globals of another module: there the stride fix and faults replace what it calls."""
    used = {step.argval for step in dis.get_instructions(method) if step.opname == "LOAD_GLOBAL"}
    missing = sorted(name for name in used if not hasattr(module, name) and not hasattr(builtins, name))
    if missing:
        raise UnrecognisedBuilderError(
            f"{path}: {BUILDER_METHOD} uses {', '.join(missing)}, which the installed {module.__name__} lacks"
        )
    moved = types.FunctionType(method.__code__, vars(module), method.__name__, method.__defaults__)
    moved.__kwdefaults__ = method.__kwdefaults__
    return moved
