"""What the plugin does on a GPU server, with an invented vLLM in place of the real one."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from .suite import ROOT

VLLM = """
import sys
from types import ModuleType, SimpleNamespace
from ds4_kernels.c128a import reference
from ds4_kernels.c128a.faulty import MetadataFault, with_fault
from ds4_kernels.c128a.layout import ViewDesign
from ds4_kernels.fix.signature import as_vllm_function

def like(positions, compress_ratio, num_decode_tokens, token_to_req_indices, block_table, block_size,
         slot_mapping, global_decode_buffer, decode_lens_buffer, prefill_buffer,
         max_compressed_tokens=8192): ...

kind = {kind!r}
builder = with_fault(reference.build, MetadataFault.PACKED_STRIDE) if kind == "packed" else reference.build
for name in ("vllm", "vllm.models", "vllm.models.deepseek_v4", "vllm.v1", "vllm.v1.attention",
             "vllm.v1.attention.backends", "vllm.v1.attention.backends.mla"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = []
platforms = sys.modules["vllm.platforms"] = ModuleType("vllm.platforms")
platforms.current_platform = SimpleNamespace(is_cpu=lambda: False)
if kind != "none":
    name = "vllm.models.deepseek_v4.sparse_mla"
    module = sys.modules[name] = ModuleType(name)
    original = as_vllm_function(builder, ViewDesign.WHOLE_ROW, like)
    module.build_c128a_topk_metadata = original
    nothing = lambda *given: None
    module.Builder = type("Builder", (), {{"_build_c128a_metadata": nothing, "__init__": nothing}})

import json, logging
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
from ds4_kernels.plugin import register
register()
register()
print(json.dumps(module.build_c128a_topk_metadata is original))
"""


def serve(kind: str, **variables: str) -> subprocess.CompletedProcess:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DS4_")}
    environment = {**clean, "PYTHONPATH": str(ROOT / "kernels"), **variables}
    code = textwrap.dedent(VLLM).format(kind=kind)
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def test_a_packing_server_gets_the_fix_and_says_so_once():
    run = serve("packed")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) is False
    assert run.stderr.count("at the packed stride: replaced by the capacity-stride builder") == 1


def test_a_right_server_is_left_alone_and_says_so():
    run = serve("right")
    assert json.loads(run.stdout) is True
    assert "already right, left as it is" in run.stderr


@pytest.mark.parametrize(("policy", "kept"), [("always", False), ("off", True), ("auto", True)])
def test_the_policy_is_taken_from_the_environment(policy, kept):
    assert json.loads(serve("right", DS4_STRIDE_FIX=policy).stdout) is kept


@pytest.mark.parametrize(
    ("kind", "variables", "message"),
    [
        ("none", {}, "ds4_kernels: no build_c128a_topk_metadata in"),
        ("right", {"DS4_STRIDE_FIX": "maybe"}, "ds4_kernels: DS4_STRIDE_FIX='maybe' is unknown"),
        ("right", {"DS4_FAULT": "packed-stride"}, "DS4_FAULT_CONFIRM=yes-break-this-server"),
        ("right", {"DS4_RELEASED_BUILDER": "sparse_mla.py"}, "belong together: set both or none"),
        ("right", {"DS4_REPLAY": "emulated"}, "DS4_REPLAY acts on CPU servers only"),
        (
            "right",
            {"DS4_FAULT": "abort-under-load", "DS4_FAULT_CONFIRM": "yes-break-this-server"},
            "abort-under-load",
        ),
    ],
)
def test_a_server_that_must_not_start_says_why_in_one_line(kind, variables, message):
    run = serve(kind, **variables)
    assert run.returncode == 1
    assert message in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr


def test_a_confirmed_fault_is_put_in_once_and_loudly():
    run = serve("right", DS4_FAULT="packed-stride", DS4_FAULT_CONFIRM="yes-break-this-server")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) is False
    warnings = [line for line in run.stderr.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1
    assert "FAULT PUT IN ON PURPOSE: packed-stride" in warnings[0]
