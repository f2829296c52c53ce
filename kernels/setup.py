"""Compiles the C attention, once for each instruction set that the loader chooses from."""

import platform
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, CompileError, ExecError, PlatformError

SOURCE = "ds4_kernels/cpu/sparse_attention.c"
FLAGS = ["-O3", "-std=c11", "-fopenmp", "-fno-math-errno"]
VARIANTS = {"baseline": []}
if platform.machine() in ("x86_64", "AMD64"):
    VARIANTS["avx2"] = ["-mavx2", "-mfma"]
    VARIANTS["avx512"] = [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mfma",
        "-mprefer-vector-width=512",
    ]


class BuildLibraries(build_ext):
    """Builds plain shared libraries (they are loaded by ctypes, not imported)."""

    def run(self) -> None:
        """Compile, or say what is missing."""
        try:
            super().run()
        except (CCompilerError, CompileError, ExecError, PlatformError) as error:
            raise SystemExit(
                f"ds4-kernels: the C attention did not compile ({error}). "
                "A C compiler with OpenMP is needed: install gcc (Debian: apt-get install gcc libc6-dev), "
                "or name one in the variable CC."
            ) from error

    def get_export_symbols(self, ext: Any) -> list[str]:
        """Export nothing but what the source declares: there is no module initialiser."""
        return []


setup(
    ext_modules=[
        Extension(
            f"ds4_kernels.cpu._sparse_attention_{variant}",
            [SOURCE],
            extra_compile_args=FLAGS + extra,
            extra_link_args=["-fopenmp"],
        )
        for variant, extra in VARIANTS.items()
    ],
    cmdclass={"build_ext": BuildLibraries},
)
