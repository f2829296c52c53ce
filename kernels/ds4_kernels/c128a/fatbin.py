"""Which GPU architectures a built CUDA library contains, read from the file itself.

NVIDIA's fat binary container is not documented; the fields read here were checked against ``cuobjdump``: a
region starts with magic 0xBA55ED50, version, header size and length, and holds entries of kind (1 = PTX,
2 = machine code), header size, length and, at byte 28, the architecture as ten times the compute capability.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_MAGIC = struct.pack("<I", 0xBA55ED50)
_REGION = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ12xI")
_PTX, _MACHINE_CODE = 1, 2


@dataclass(frozen=True)
class Architectures:
    """What a library can run on, as compute capabilities times ten (90 = sm_90).

    Attributes:
        machine_code: architectures with machine code for every kernel in the library.
        ptx: architectures whose PTX the driver can compile for newer GPUs.
    """

    machine_code: frozenset[int]
    ptx: frozenset[int]

    def run_on(self, major: int, minor: int) -> bool:
        """Tell whether a GPU can run the library.

        Machine code runs on GPUs of its own major version with the same or a higher minor version; PTX can be
        compiled for the same or any higher compute capability.

        Args:
            major: major compute capability of the GPU.
            minor: minor compute capability of the GPU.

        Returns:
            Whether some contained architecture fits.
        """
        gpu = 10 * major + minor
        fits = any(code // 10 == major and code <= gpu for code in self.machine_code)
        return fits or any(code <= gpu for code in self.ptx)

    def __str__(self) -> str:
        names = [f"sm_{code}" for code in sorted(self.machine_code)]
        return ", ".join(names + [f"compute_{code} (PTX)" for code in sorted(self.ptx)]) or "none"


def architectures(library: Path) -> Architectures:
    """Read the architectures out of a shared library.

    Args:
        library: a file that nvcc built.

    Returns:
        Its machine code and PTX architectures.

    Raises:
        ValueError: the file holds no CUDA fat binary.
    """
    data = library.read_bytes()
    regions = []
    start = data.find(_MAGIC)
    while start >= 0:
        regions.append(_entries(data, start))
        start = data.find(_MAGIC, start + 1)
    if not regions:
        raise ValueError(f"{library}: holds no CUDA fat binary; build it with ds4_kernels.c128a.build_cuda")
    # nvcc adds a region of its own for device linking: what counts is an architecture in every region
    machine_code = [{arch for kind, arch in region if kind == _MACHINE_CODE} for region in regions]
    ptx = {arch for region in regions for kind, arch in region if kind == _PTX}
    return Architectures(frozenset(set.intersection(*machine_code)), frozenset(ptx))


def _entries(data: bytes, start: int) -> list[tuple[int, int]]:
    _, _, header, length = _REGION.unpack_from(data, start)
    position, end = start + header, start + header + length
    found = []
    while position + _ENTRY.size <= end:
        kind, _, entry_header, size, arch = _ENTRY.unpack_from(data, position)
        found.append((kind, arch))
        position += entry_header + size
    return found
