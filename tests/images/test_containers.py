"""What containers are allowed, and that none is left behind."""

import os
import subprocess
import sys

import psutil
import pytest

from qualify.errors import MachineryError
from qualify.images import containers
from qualify.images.containers import HARNESS_LABEL, Bind, ContainerSpec, create, run_to_end, start, sweep
from tests.images.conftest import ROOT
from tests.images.engine import FakeEngine, api_error
from tests.images.factory import IDENTITY

LABEL = """
import time
from qualify.images.containers import _harness
print(_harness(), flush=True)
time.sleep(60)
"""
SPEC = ContainerSpec(image=IDENTITY.reference, argv=("/opt/python", "-m", "x"), role="candidate")


def options(engine: FakeEngine, spec: ContainerSpec = SPEC) -> dict:
    create(engine, spec)
    return engine.containers.made[-1].options


def test_nothing_is_allowed_that_is_not_needed(tmp_path):
    bind = Bind(source=tmp_path, target="/model")
    made = options(FakeEngine(), ContainerSpec(**{**fields(SPEC), "binds": (bind,)}))
    assert made["read_only"] is True
    assert made["cap_drop"] == ["ALL"]
    assert made["security_opt"] == ["no-new-privileges"]
    assert made["init"] is True
    assert made["network_mode"] == "none"
    assert made["user"].split(":")[0] not in ("", "0")
    assert made["mem_limit"] == made["memswap_limit"] == 4 * 2**30
    assert made["pids_limit"] == 512
    assert list(made["tmpfs"]) == ["/tmp"]
    assert made["mounts"][0]["ReadOnly"] is True
    assert made["device_requests"] is None
    assert made["entrypoint"] == ["/opt/python"]


def fields(spec: ContainerSpec) -> dict:
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}


def test_root_becomes_nobody_and_others_stay_themselves(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert containers.unprivileged_user() == (65532, 65532)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "getgid", lambda: 1001)
    assert containers.unprivileged_user() == (1000, 1001)


def test_gpu_needs_its_runtime_before_anything_is_made():
    spec = ContainerSpec(**{**fields(SPEC), "gpus": 2})
    engine = FakeEngine()
    with pytest.raises(MachineryError, match="no NVIDIA runtime"):
        create(engine, spec)
    assert not engine.containers.made
    made = options(FakeEngine(("runc", "nvidia")), spec)
    assert made["device_requests"][0]["Count"] == 2


def test_container_that_cannot_start_is_removed():
    engine = FakeEngine()
    engine.containers.changes = {"start_error": api_error(500, "could not select device driver")}
    container = create(engine, SPEC)
    with pytest.raises(MachineryError, match="could not select device driver"):
        start(container)
    assert not engine.containers.made


def test_missing_image_is_the_machines_trouble():
    engine = FakeEngine()
    engine.containers.create_error = api_error(404, "No such image")
    with pytest.raises(MachineryError, match="No such image"):
        create(engine, SPEC)


def test_run_to_end_gives_both_outputs_and_leaves_nothing():
    engine = FakeEngine()
    engine.containers.changes = {
        "output": (b"out", b"err"),
        "state": {"Status": "exited", "ExitCode": 137, "OOMKilled": True},
    }
    output = run_to_end(engine, SPEC, within_s=1)
    assert (output.exit_code, output.stdout, output.stderr, output.out_of_memory) == (137, "out", "err", True)
    assert not engine.containers.made


def test_sweep_removes_only_what_a_dead_harness_left():
    engine = FakeEngine()
    mine, dead, later, elsewhere = (create(engine, SPEC) for _ in range(4))
    namespace, boot, pid, began = mine.labels[HARNESS_LABEL].split(":")
    dead.labels[HARNESS_LABEL] = f"{namespace}:{boot}:4194303:{began}"
    later.labels[HARNESS_LABEL] = f"{namespace}:{boot}:{pid}:1"  # the same process id, of another process
    elsewhere.labels[HARNESS_LABEL] = f"1:{boot}:4194303:1"  # in a container: whether it runs cannot be seen
    booted = create(engine, SPEC)
    booted.labels[HARNESS_LABEL] = f"{namespace}:before:{pid}:{began}"
    assert sorted(sweep(engine)) == sorted([dead.name, later.name, booted.name])
    assert engine.containers.made == [mine, elsewhere]


def test_clock_that_is_set_makes_no_harness_look_dead(monkeypatch):
    engine = FakeEngine()
    mine = create(engine, SPEC)
    other = subprocess.Popen([sys.executable, "-c", LABEL], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        others = create(engine, SPEC)
        others.labels[HARNESS_LABEL] = other.stdout.readline().strip()
        moved = psutil.boot_time() + 60
        monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: moved)
        assert sweep(engine) == []
        assert engine.containers.made == [mine, others]
    finally:
        other.kill()
        other.wait()
    assert sweep(engine) == [others.name]
