"""Loads vLLM's plugins as a server does, and prints, as the last line, whether ds4_kernels is active."""

from __future__ import annotations

import importlib
import json


def main() -> None:
    """Print the outcome as one JSON line."""
    importlib.import_module("vllm.plugins").load_general_plugins()
    plugin = importlib.import_module("ds4_kernels.plugin")
    print(json.dumps({"active": bool(plugin.active())}))


if __name__ == "__main__":
    main()
