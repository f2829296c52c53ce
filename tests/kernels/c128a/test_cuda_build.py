"""The CUDA library: built for three architectures, read back, and refused where it does not fit."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import triton
from ds4_kernels.c128a import cuda_kernel
from ds4_kernels.c128a.build_cuda import DEFAULT_ARCHITECTURES, BuildError, build_library, find_nvcc
from ds4_kernels.c128a.cuda_library import LibraryError, load_library
from ds4_kernels.c128a.fatbin import Architectures, architectures
from ds4_kernels.c128a.layout import Batch, Buffers

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("cuda") / "library.so"
    build_library(path)
    return path


def test_the_library_contains_what_was_asked_for(library):
    assert architectures(library) == Architectures(frozenset({90, 100, 120}), frozenset({120}))


def test_cuobjdump_finds_the_same(library):
    listed = subprocess.check_output([CUOBJDUMP, "--list-elf", "--list-ptx", library], text=True)
    for arch in DEFAULT_ARCHITECTURES:
        assert f".sm_{arch}.cubin" in listed
    assert listed.count(".ptx") == 1
    assert ".sm_120.ptx" in listed


def test_a_library_of_one_architecture_lists_one(tmp_path):
    path = tmp_path / "hopper.so"
    build_library(path, (90,))
    assert str(architectures(path)) == "sm_90, compute_90 (PTX)"


@pytest.mark.parametrize(
    ("gpu", "fits"),
    [((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 0), True), ((10, 3), True), ((12, 1), True)],
)
def test_gpus_are_told_apart(library, gpu, fits):
    loaded = load_library(library)
    if fits:
        loaded.check_gpu(*gpu, "some GPU")
        return
    with pytest.raises(LibraryError, match=f"built for sm_90, sm_100, sm_120.*some GPU .sm_{gpu[0]}{gpu[1]}"):
        loaded.check_gpu(*gpu, "some GPU")


def test_newer_gpus_need_ptx():
    machine_code_only = Architectures(frozenset({90}), frozenset())
    assert not machine_code_only.run_on(10, 0)
    assert Architectures(frozenset({90}), frozenset({90})).run_on(10, 0)


def test_a_missing_library_says_how_to_build_it(tmp_path):
    with pytest.raises(
        LibraryError, match=r"no such file; build it with python -m ds4_kernels\.c128a\.build_cuda"
    ):
        load_library(tmp_path / "nothing.so")


def test_a_library_without_gpu_code_is_refused(tmp_path):
    path = tmp_path / "plain.so"
    source = tmp_path / "plain.c"
    source.write_text("int ds4_c128a_interface(void) { return 1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    with pytest.raises(LibraryError, match="holds no CUDA fat binary"):
        load_library(path)


def test_a_library_of_another_interface_is_refused(tmp_path, monkeypatch, library):
    monkeypatch.setattr("ds4_kernels.c128a.cuda_library.INTERFACE", 2)
    copy = shutil.copy(library, tmp_path / "other.so")
    with pytest.raises(LibraryError, match="has interface 1, this package needs 2"):
        load_library(Path(copy))


def test_a_failed_launch_is_an_error(library):
    with pytest.raises(LibraryError, match="CUDA error 100: no CUDA-capable device"):
        load_library(library).check_code(100)


def test_without_a_compiler_the_message_says_what_to_install(monkeypatch):
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BuildError, match="pip install nvidia-cuda-nvcc"):
        find_nvcc()


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho no such architecture >&2\nexit 3\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(BuildError, match=r"failed with 3:\nno such architecture"):
        build_library(tmp_path / "x.so")


def step() -> Batch:
    return Batch(
        positions=torch.tensor([255]),
        num_decode_tokens=1,
        token_to_req=torch.zeros(1, dtype=torch.int32),
        block_table=torch.zeros((1, 1), dtype=torch.int32),
        block_size=256,
        slot_mapping=torch.zeros(1, dtype=torch.int64),
        width=128,
    )


def test_buffers_that_are_not_on_a_gpu_are_refused():
    with pytest.raises(ValueError, match="decode buffer device: got cpu, expected a CUDA device"):
        cuda_kernel.build(step(), Buffers.allocate(1, 128))


def test_bad_arguments_are_refused_before_the_gpu_is_looked_at():
    with pytest.raises(ValueError, match="capacity: got 100"):
        cuda_kernel.build(step(), Buffers.allocate(1, 100))


def test_the_operator_is_registered_and_traceable():
    schema = str(torch.ops.ds4_kernels.c128a_metadata.default._schema)
    assert "Tensor(a!) decode, Tensor(b!) lens, Tensor(c!) prefill" in schema
    meta = [
        tensor.to("meta") for tensor in (torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int32))
    ]
    table, rows = torch.empty((1, 1), device="meta"), torch.empty((1, 128), device="meta")
    arguments = (meta[0], meta[1], table, meta[0], rows, meta[1], rows, 1, 1, 128, 128, 2, 1, 0, 1)
    assert torch.ops.ds4_kernels.c128a_metadata(*arguments) is None
