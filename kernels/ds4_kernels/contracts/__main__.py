"""Put one implementation of the C128A metadata through the contract.

Exit code: 0 every check that was run passed, 1 some failed, 2 wrong usage, 4 the subject cannot be run.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, so before any import that does

from ds4_kernels.c128a.faulty import MetadataFault
from ds4_kernels.contracts.run import run_suite, write_summary
from ds4_kernels.contracts.subjects import SubjectError, SubjectRequest, resolve
from ds4_kernels.fix.stride import StrideFixPolicy

CANNOT_RUN = 4


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: command line, without the program's name; None takes the process's own.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m ds4_kernels.contracts", description=__doc__)
    parser.add_argument(
        "--subject",
        required=True,
        help="reference, triton, cuda, vllm or module:function",
    )
    parser.add_argument("--junit", type=Path, metavar="F", help="write JUnit XML")
    parser.add_argument("--json", type=Path, metavar="F", help="write the summary as JSON")
    parser.add_argument("--vllm-root", type=Path, metavar="DIR", help="test the vllm package in this folder")
    parser.add_argument("--stride-fix", choices=("auto", "always"), help="install the fix into vLLM first")
    parser.add_argument(
        "--fault",
        choices=[fault.value for fault in MetadataFault],
        help="put a fault in; must turn red",
    )
    parser.add_argument("--examples", type=int, default=25, help="drawn cases for each property (default 25)")
    parser.add_argument("--only", metavar="EXPR", help="run only the checks that match (pytest -k)")
    options = parser.parse_args(arguments)
    request = SubjectRequest(
        options.subject,
        options.vllm_root,
        StrideFixPolicy(options.stride_fix) if options.stride_fix else None,
        MetadataFault(options.fault) if options.fault else None,
    )
    try:
        subject = resolve(request)
    except SubjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return CANNOT_RUN
    summary = run_suite(subject, options.examples, options.junit, options.only)
    print(summary.text())
    if options.json:
        write_summary(summary, options.json)
    if not summary.passed and not summary.failed:
        print("error: no check was run", file=sys.stderr)
        return CANNOT_RUN
    return 1 if summary.failed else 0


if __name__ == "__main__":
    sys.exit(main())
