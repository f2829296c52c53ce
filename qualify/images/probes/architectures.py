"""Prints, as one JSON line, which GPU architectures the CUDA kernels in this image were built for."""

from __future__ import annotations

import importlib
import json


def main() -> None:
    """Print compute capabilities times ten, or why they cannot be read."""
    library = importlib.import_module("ds4_kernels.c128a.cuda_library").DEFAULT_LIBRARY
    try:
        found = importlib.import_module("ds4_kernels.c128a.fatbin").architectures(library)
    except (OSError, ValueError) as error:
        print(json.dumps({"machine_code": [], "ptx": [], "trouble": str(error)}))
    else:
        print(
            json.dumps({"machine_code": sorted(found.machine_code), "ptx": sorted(found.ptx), "trouble": ""})
        )


if __name__ == "__main__":
    main()
