#!/usr/bin/env bash
# Contracts with graph replay, faults, and the benchmark, on a machine with a GPU.
#   h200.sh OUT VLLM_SOURCES    (VLLM_SOURCES: the folder that `make contracts-released` leaves in .cache/vllm-sources)
# A suite that must fail is listed as such in exits.txt; nothing stops at the first failure.
set -u
OUT=$1 VLLM=$2
export PYTHONPATH=kernels
mkdir -p "$OUT"
{
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    nvcc --version | tail -n 2 | head -n 1
    python3 -c 'import numpy, torch, triton; print("torch", torch.__version__, "triton", triton.__version__, "numpy", numpy.__version__)'
    python3 -m ds4_kernels.c128a.build_cuda | sed "s|$PWD/||"
} > "$OUT/card.txt" 2>&1
mkdir -p build
sed 's/row = s.decode + token \* s.capacity/row = s.decode + token * s.width/' \
    kernels/ds4_kernels/c128a/metadata.cu > build/packed.cu
cmp -s build/packed.cu kernels/ds4_kernels/c128a/metadata.cu && echo "the mutation did not apply" >> "$OUT/exits.txt"
nvcc -O3 -std=c++17 -shared -Xcompiler -fPIC -arch=sm_90 -o build/packed.so build/packed.cu

suite() {  # suite NAME EXPECTED-EXIT arguments...
    local name=$1 expected=$2
    shift 2
    timeout 400 python3 -m ds4_kernels.contracts "$@" --json "$OUT/$name.json" > "$OUT/$name.log" 2>&1
    echo "$name: exit $? (expected $expected)" >> "$OUT/exits.txt"
}
suite reference 0 --subject reference &
suite cuda 0 --subject cuda --examples 100 &
suite triton 0 --subject triton --examples 100 &
suite vllm-0.26.0 0 --subject vllm --vllm-root "$VLLM/0.26.0" --examples 100 &
suite vllm-0.27.1 1 --subject vllm --vllm-root "$VLLM/0.27.1" &
suite vllm-0.27.1-fix 0 --subject vllm --vllm-root "$VLLM/0.27.1" --stride-fix auto &
suite vllm-0.33.0 0 --subject vllm --vllm-root "$VLLM/0.33.0" &
suite vllm-0.33.0-fix-always 0 --subject vllm --vllm-root "$VLLM/0.33.0" --stride-fix always &
wait
DS4_CUDA_LIBRARY=build/packed.so suite cuda-without-stride 1 --subject cuda --only "not sanitizer" &
for fault in packed-stride packed-stride-last-row packed-stride-every-8th-step stale-tail lengths-off-by-one \
    neighbour-block-table newest-entry-missing wrong-dcp-owner; do
    suite "cuda-$fault" 1 --subject cuda --fault "$fault" --only "numbers or stride or prefix or replay" &
done
wait
sort -o "$OUT/exits.txt" "$OUT/exits.txt"
for log in "$OUT"/*.log; do grep -A 999 ' on .*:$' "$log" | cut -c 1-200; done > "$OUT/contracts.txt"
python3 -m ds4_kernels.bench --vllm-root "$VLLM/0.26.0" --json "$OUT/bench.json" > "$OUT/bench.txt" 2>&1
cat "$OUT/card.txt" "$OUT/exits.txt" "$OUT/bench.txt"
