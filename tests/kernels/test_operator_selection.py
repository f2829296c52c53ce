"""Whatever the CPU, the operators that vLLM calls are ours: proven by watching which Python code runs."""

import json
import os
import subprocess
import sys

import pytest

PROBE = """
import json, os, sys
import torch

if os.environ["PRETEND"] == "avx2":  # have vLLM load its library for a CPU without AVX512
    torch.cpu._is_avx512_supported = lambda: False
    torch.cpu._is_avx512_bf16_supported = lambda: False

from ds4_kernels.plugin import register
from vllm.platforms import current_platform
current_platform.import_kernels()
from ds4_kernels.cpu.operators import OPERATORS
before = [op.name for op in OPERATORS if hasattr(torch.ops._C, op.name)]
register()
import vllm._custom_ops as ops

def latent(n=2): return torch.zeros(n, 2 * 584, dtype=torch.uint8)
slots = torch.zeros(1, dtype=torch.int64)
cos_sin = torch.cat([torch.ones(200, 32), torch.zeros(200, 32)], dim=1)
streams = torch.randn(2, 4, 32)
def compress(op, dim, cache):
    op(torch.randn(8, 16, 2 * dim), torch.arange(128).unsqueeze(0), torch.tensor([127]), slots,
    torch.ones(dim), 1e-6,
       cos_sin, cache, 2, 128)
CALLS = {
    "hc_pre_fused_cpu": lambda op: op(streams, torch.randn(24, 128), torch.ones(3), torch.zeros(24), 4, 2,
    1e-6, 1e-6), "hc_post_fused_cpu": lambda op: op(torch.randn(2, 32), streams, torch.randn(2, 4),
    torch.randn(2, 4, 4)), "hc_head_fused_cpu": lambda op: op(streams, torch.randn(4, 128), torch.ones(1),
    torch.zeros(4), 1e-6, 1e-6), "fused_qnorm_rope_kv_insert_cpu": lambda op: op(torch.randn(1, 2, 512),
    torch.randn(1, 512), slots, latent(), slots,
                                                    cos_sin, 2, 1e-6, 2),
    "flash_mla_with_kvcache_cpu": lambda op: op(torch.empty(1, 2, 512), torch.randn(1, 2, 512), latent(),
        torch.zeros(1, 1, dtype=torch.int64), 2, latent(), torch.zeros(1, 1, dtype=torch.int64), 2,
        torch.zeros(2), 0.1),
    "inverse_gptj_rope_o_proj_cpu": lambda op: op(torch.randn(1, 2, 512), slots, cos_sin, 64),
    "save_partial_states_cpu": lambda op: op(torch.randn(1, 8), torch.randn(1, 8), torch.randn(4, 8), slots,
                                             torch.zeros(1, 2, 16), slots),
    "compress_norm_rope_store_cpu": lambda op: compress(op, 512, latent()),
    "compress_norm_rope_store_indexer_cpu": lambda op: compress(op, 128, torch.zeros(2, 264,
    dtype=torch.uint8)), "fused_indexer_q_rope_quant_cpu": lambda op: op(slots, torch.randn(1, 2, 128),
    cos_sin,
        torch.empty(1, 2, 128, dtype=torch.float8_e4m3fn), torch.ones(1, 2), 1.0, 1.0, torch.empty(1, 2)),
    "fp8_paged_mqa_logits_cpu": lambda op: op(torch.zeros(1, 2, 128, dtype=torch.float8_e4m3fn),
        torch.zeros(2, 264, dtype=torch.uint8), torch.ones(1, 2), torch.ones(1, dtype=torch.int32),
        torch.zeros(1, 1, dtype=torch.int32), 2, 2),
    "topk_transform_512_cpu": lambda op: op(torch.zeros(1, 2), torch.ones(1, dtype=torch.int32),
        torch.zeros(1, 1, dtype=torch.int32), torch.empty(1, 512, dtype=torch.int32), 2, None),
    "biased_topk_cpu": lambda op: op(torch.zeros(1, 8), torch.zeros(1, 8), torch.zeros(8), 2, True,
    "sqrtsoftplus", 0,
                                     1.0, True),
    "hash_topk_cpu": lambda op: op(torch.zeros(1, 8), torch.zeros(1, 2, dtype=torch.int32), 2, "sqrtsoftplus",
    0, 8, 1.0),
}

def codes_run(call):
    seen = set()
    sys.setprofile(lambda frame, event, argument: seen.add(frame.f_code) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen

ours = {op.name: op.implementation.__code__ in codes_run(lambda: CALLS[op.name](getattr(torch.ops._C,
op.name)))
        for op in OPERATORS}
wrapped = [name for name in ours if hasattr(ops, name)]
through_vllm = {name: next(o for o in OPERATORS if o.name == name).implementation.__code__
                in codes_run(lambda: CALLS[name](getattr(ops, name))) for name in wrapped}

from vllm.models.deepseek_v4.cpu import cpu_mla, cpu_sparse
from ds4_kernels.cpu import attention, attention_layer
layer = cpu_sparse.DeepseekV4CPUAttention
print(json.dumps({
    "native": before,
    "ours": ours,
    "through_vllm": through_vllm,
    "layer": [layer.forward_mqa is attention_layer.forward_mqa, layer._o_proj is
    attention_layer.project_output,
              layer._wrap_wo_a_process_weights_after_loading is attention_layer.keep_output_weight],
    "builder": cpu_mla.DeepseekV4CPUSparseBackend.get_builder_cls().__name__,
    "attention": attention.selected_attention().__module__,
    "tile_scheduler": len(cpu_mla.DeepseekV4CPUSparseSWAMetadataBuilder.build_tile_scheduler(None, 1)),
}))
"""


def probe(pretend: str, **environment: str) -> dict:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DS4_")}
    run = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**clean, "PRETEND": pretend, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def as_it_is():
    return probe("nothing")


@pytest.fixture(scope="module")
def without_native():
    return probe("avx2")


def assert_all_ours(result: dict) -> None:
    assert len(result["ours"]) == 14
    assert result["ours"] == dict.fromkeys(result["ours"], True)
    assert len(result["through_vllm"]) >= 13
    assert result["through_vllm"] == dict.fromkeys(result["through_vllm"], True)
    assert result["layer"] == [True, True, True]
    assert result["tile_scheduler"] == 5


def test_ours_on_this_cpu(as_it_is):
    import torch

    native = torch.cpu._is_avx512_bf16_supported()
    assert len(as_it_is["native"]) == (14 if native else 0)
    assert_all_ours(as_it_is)
    assert as_it_is["builder"] == "DeepseekV4CPUFlashMLAMetadataBuilder"


def test_ours_where_vllm_has_none(without_native):
    assert without_native["native"] == []
    assert_all_ours(without_native)


def test_attention_is_c_unless_torch_is_asked_for(as_it_is):
    assert as_it_is["attention"] == "ds4_kernels.cpu.native"
    asked = probe("nothing", DS4_CPU_ATTENTION="torch", DS4_REPLAY="emulated")
    assert asked["attention"] == "ds4_kernels.cpu.attention"
    assert asked["builder"] == "EmulatedReplayMetadataBuilder"
