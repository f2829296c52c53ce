"""Loading the built CUDA library and calling its C interface."""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from pathlib import Path

from ds4_kernels.c128a.fatbin import Architectures, architectures

DEFAULT_LIBRARY = Path(__file__).with_name("libds4_c128a.so")
LIBRARY_VARIABLE = "DS4_CUDA_LIBRARY"
INTERFACE = 1  # what ds4_c128a_interface() of metadata.cu returns

_POINTER, _INT64, _INT32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_BUILD_ARGUMENTS = [_POINTER] * 7 + [_INT64] * 4 + [_INT32] * 9 + [_POINTER]


class LibraryError(RuntimeError):
    """The CUDA library is missing, does not fit, or reported an error; says what to do."""


@dataclass(frozen=True)
class Library:
    """A loaded library.

    Attributes:
        path: the file.
        architectures: what it was found to contain.
        handle: the loaded library, with ``ds4_c128a_build`` typed.
    """

    path: Path
    architectures: Architectures
    handle: ctypes.CDLL

    def check_gpu(self, major: int, minor: int, name: str) -> None:
        """Refuse a GPU that the library holds no code for.

        Args:
            major: major compute capability.
            minor: minor compute capability.
            name: the GPU's name, for the message.

        Raises:
            LibraryError: no contained architecture fits.
        """
        if not self.architectures.run_on(major, minor):
            raise LibraryError(
                f"{self.path}: built for {self.architectures}, the GPU is {name} (sm_{major}{minor}); "
                f"rebuild with python -m ds4_kernels.c128a.build_cuda --arch {major}{minor}"
            )

    def check_code(self, code: int) -> None:
        """Turn a return code of the library into an exception.

        Args:
            code: a cudaError_t.

        Raises:
            LibraryError: the code is not 0.
        """
        if code:
            meaning = self.handle.ds4_c128a_error(code).decode()
            raise LibraryError(f"{self.path}: launch failed with CUDA error {code}: {meaning}")


def library_path() -> Path:
    """Give the file to load: DS4_CUDA_LIBRARY, or the one beside this module."""
    return Path(os.environ.get(LIBRARY_VARIABLE, DEFAULT_LIBRARY))


@functools.cache
def load_library(path: Path) -> Library:
    """Load a library once.

    Args:
        path: the shared library.

    Returns:
        The loaded library.

    Raises:
        LibraryError: it is missing, holds no GPU code, or has another interface.
    """
    if not path.is_file():
        raise LibraryError(f"{path}: no such file; build it with python -m ds4_kernels.c128a.build_cuda")
    try:
        contained = architectures(path)
        handle = ctypes.CDLL(str(path))
        found = handle.ds4_c128a_interface()
    except (OSError, ValueError, AttributeError) as error:
        raise LibraryError(f"{path}: cannot be loaded: {error}") from error
    if found != INTERFACE:
        raise LibraryError(f"{path}: has interface {found}, this package needs {INTERFACE}; rebuild it")
    handle.ds4_c128a_build.argtypes = _BUILD_ARGUMENTS
    handle.ds4_c128a_build.restype = ctypes.c_int
    handle.ds4_c128a_error.argtypes = [ctypes.c_int]
    handle.ds4_c128a_error.restype = ctypes.c_char_p
    return Library(path, contained, handle)
