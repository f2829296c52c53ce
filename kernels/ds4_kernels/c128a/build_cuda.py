"""Build the CUDA library: ``python -m ds4_kernels.c128a.build_cuda [--out FILE] [--arch 90 100 120]``.

Needs a host C++ compiler and nvcc, from CUDA_HOME, the PATH, or these packages of one CUDA release from PyPI:
nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt, nvidia-cuda-runtime.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ds4_kernels.c128a.cuda_library import DEFAULT_LIBRARY
from ds4_kernels.c128a.fatbin import Architectures, architectures

SOURCE = Path(__file__).with_name("metadata.cu")
# sm_90: H100, H200; sm_100: B200 (its code also runs on B300); sm_120: RTX PRO 6000 Blackwell
DEFAULT_ARCHITECTURES = (90, 100, 120)


class BuildError(RuntimeError):
    """The library could not be built; says why and what to do."""


def find_nvcc() -> Path:
    """Find the CUDA compiler.

    Returns:
        Path of nvcc: from CUDA_HOME, else the PATH, else PyPI's nvidia-cuda-nvcc.

    Raises:
        BuildError: there is none.
    """
    candidates = []
    if home := os.environ.get("CUDA_HOME"):
        candidates.append(Path(home) / "bin" / "nvcc")
    if on_path := shutil.which("nvcc"):
        candidates.append(Path(on_path))
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        candidates.extend(sorted(Path(folder).glob("cu*/bin/nvcc")))
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise BuildError(
        "no CUDA compiler: set CUDA_HOME, put nvcc on the PATH, or pip install nvidia-cuda-nvcc==13.0.* "
        "nvidia-nvvm==13.0.* nvidia-cuda-crt==13.0.* nvidia-cuda-runtime==13.0.*"
    )


def compile_command(nvcc: Path, out: Path, archs: tuple[int, ...]) -> list[str]:
    """Give the compiler's command line.

    Args:
        nvcc: the compiler.
        out: shared library to write.
        archs: compute capabilities times ten; the highest is also embedded as PTX for newer GPUs.

    Returns:
        The command and its arguments.
    """
    newest = max(archs)
    targets = [f"arch=compute_{arch},code=sm_{arch}" for arch in archs]
    targets.append(f"arch=compute_{newest},code=compute_{newest}")
    command = [str(nvcc), "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC,-fvisibility=hidden"]
    command += ["-cudart", "static", "-cudadevrt", "none"]  # no CUDA library to find, whatever torch brings
    for target in targets:
        command += ["-gencode", target]
    # PyPI's packages keep the runtime in lib; nvcc itself looks in lib64
    return [*command, f"-L{nvcc.parent.parent / 'lib'}", "-o", str(out), str(SOURCE)]


def build_library(
    out: Path = DEFAULT_LIBRARY, archs: tuple[int, ...] = DEFAULT_ARCHITECTURES
) -> Architectures:
    """Compile the library and read back what it contains.

    Args:
        out: shared library to write.
        archs: compute capabilities times ten.

    Returns:
        The architectures found in the built file.

    Raises:
        BuildError: no compiler, it failed, or the file lacks an architecture that was asked for.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    command = compile_command(find_nvcc(), out, archs)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\nfailed with {done.returncode}:\n{done.stdout}{done.stderr}")
    contained = architectures(out)
    if missing := set(archs) - contained.machine_code:
        raise BuildError(f"{out}: asked for {sorted(archs)}, lacks machine code for {sorted(missing)}")
    return contained


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: command line, without the program's name; None takes the process's own.

    Returns:
        0 when built, 1 when not.
    """
    parser = argparse.ArgumentParser(prog="python -m ds4_kernels.c128a.build_cuda", description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_LIBRARY, help="shared library to write")
    parser.add_argument("--arch", type=int, nargs="+", default=list(DEFAULT_ARCHITECTURES), metavar="CC")
    options = parser.parse_args(arguments)
    try:
        contained = build_library(options.out, tuple(options.arch))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: {contained}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
