"""Containers and pushes on a real engine and registry: `make test-images`."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from docker import DockerClient

from qualify.errors import MachineryError
from qualify.images.containers import HARNESS_LABEL, ContainerSpec, create, run_to_end, sweep
from qualify.images.files import list_files, unwanted
from qualify.images.identity import ImageIdentity
from qualify.images.registry_process import Registry
from qualify.images.staging import push
from qualify.record import ArmState
from qualify.release import Container as Limits
from qualify.serving.arms import ServerCommand
from qualify.serving.docker import DockerLauncher, DockerServer, Serving
from qualify.serving.endings import classify
from tests.images.conftest import BASE, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(300)]

LOOK = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
def writes(path):
    try:
        open(path, "w").close()
        return True
    except OSError:
        return False
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(),
    "capabilities": [status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"].strip(), "first": open("/proc/1/comm").read().strip(),
    "writes": [path for path in ("/x", "/etc/x", "/opt/x", "/model/x", "/tmp/x") if writes(path)],
}), flush=True)
"""


@pytest.fixture(scope="module")
def image(engine: DockerClient, registry: Registry) -> ImageIdentity:
    """The base image, pushed: what can be run by digest."""
    base = engine.images.get(BASE)
    return push(engine, base.id, registry=registry.address, name="staging/base", build_id="a" * 64)


def serve(image: ImageIdentity, directory: Path, text: str, **limits: float) -> DockerServer:
    (directory / "model").mkdir(exist_ok=True)
    serving = Serving(
        image=image.reference,
        arm="candidate",
        model=directory / "model",
        directory=directory / "arms/candidate",
        limits=Limits(**limits),
    )
    command = ServerCommand(("python3", "-c", text), (), Path("/"))
    return DockerLauncher(serving, lambda port: command, stop_within_s=3).start()


async def ended(server: DockerServer):
    deadline = time.monotonic() + 60
    while (seen := server.ended()) is None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)
    return seen


async def test_arm_has_no_root_no_capabilities_and_no_writable_root(engine, image, tmp_path):
    server = serve(image, tmp_path, LOOK + "import time; time.sleep(60)")
    try:
        deadline = time.monotonic() + 30
        while not server.last_line() and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        seen = json.loads(server.last_line())
        host = engine.containers.get(server.name).attrs["HostConfig"]
        config = engine.containers.get(server.name).attrs["Config"]
    finally:
        await server.stop()
    assert seen["uid"] != 0
    assert seen["gid"] != 0
    assert 0 not in seen["groups"]
    assert set(seen["capabilities"]) == {"0" * 16}
    assert seen["no_new_privileges"] == "1"
    assert seen["first"] == "docker-init"
    assert seen["writes"] == ["/tmp/x"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["Privileged"]
    assert config["Image"] == image.reference
    assert HARNESS_LABEL in config["Labels"]


async def test_sigterm_ends_it_and_nothing_is_left(engine, image, tmp_path):
    text = (
        "import signal, sys, time\n"
        "signal.signal(15, lambda *a: sys.exit(print('bye', flush=True)))\n"
        "time.sleep(60)"
    )
    server = serve(image, tmp_path, text)
    await asyncio.sleep(1)
    assert server.ended() is None
    began = time.monotonic()
    await server.stop()
    assert time.monotonic() - began < 10
    assert server.last_line() == "bye"
    assert not engine.containers.list(all=True, filters={"name": server.name})


async def test_memory_limit_is_the_machines_trouble(image, tmp_path):
    server = serve(image, tmp_path, "x = [b'x' * 2**20 for _ in range(1000)]", memory_gib=0.1)
    try:
        seen = await ended(server)
    finally:
        await server.stop()
    assert seen.out_of_memory
    assert classify(seen, server.log_lines(), ready=True).state is ArmState.MACHINERY


@pytest.mark.parametrize(
    ("text", "returncode", "state"),
    [
        ("import os; os.abort()", -signal.SIGABRT, ArmState.DIED),
        ("import sys; sys.exit(3)", 3, ArmState.DIED),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ArmState.KILLED),
    ],
)
async def test_ends_are_told_apart(image, tmp_path, text, returncode, state):
    server = serve(image, tmp_path, text)
    try:
        seen = await ended(server)
    finally:
        await server.stop()
    assert seen.returncode == returncode
    assert classify(seen, server.log_lines(), ready=True).state is state


def test_gpu_without_its_runtime_leaves_no_container(engine, image):
    if "nvidia" in engine.info()["Runtimes"]:
        pytest.fail("this test is for an engine without the NVIDIA runtime")
    before = len(engine.containers.list(all=True))
    with pytest.raises(MachineryError, match="no NVIDIA runtime"):
        create(engine, ContainerSpec(image=image.reference, argv=("true",), role="gpu", gpus=1))
    assert len(engine.containers.list(all=True)) == before


def test_program_that_is_not_in_the_image_leaves_no_container(engine, image):
    before = len(engine.containers.list(all=True))
    spec = ContainerSpec(image=image.reference, argv=("/no-such-program",), role="x")
    output = run_to_end(engine, spec, within_s=30)
    assert output.exit_code == 127
    assert "/no-such-program" in output.stderr
    assert len(engine.containers.list(all=True)) == before


def test_container_without_network_reaches_nothing(engine, image):
    text = "import socket; print(socket.if_nameindex())"
    output = run_to_end(
        engine, ContainerSpec(image=image.reference, argv=("python3", "-c", text), role="net"), within_s=60
    )
    assert output.stdout.strip() == "[(1, 'lo')]"


def test_what_only_root_may_read_is_seen_in_an_image(engine, tmp_path):
    (tmp_path / "Dockerfile").write_text(
        f"FROM {BASE}\nENV HF_TOKEN=x\n"
        "RUN chmod 700 /root && echo x >/root/.netrc && mkdir -p /model"
        " && head -c 2000000 /dev/zero >/model/a.safetensors && ln /model/a.safetensors /tmp/b.gguf\n"
    )
    built, _ = engine.images.build(path=str(tmp_path), network_mode="host", rm=True)
    try:
        files = list_files(engine, built.id)
        assert unwanted(files, frozenset()) == ("/model/a.safetensors", "/root/.netrc", "/tmp/b.gguf")
        base = list_files(engine, BASE)
        assert len(base) > 1000
        assert len(files) == len(base) + 3
        assert unwanted(base, frozenset()) == ()
    finally:
        engine.images.remove(built.id, force=True)
    assert not engine.containers.list(all=True, filters={"label": HARNESS_LABEL})


def test_what_a_killed_harness_left_is_swept(engine, image, tmp_path):
    harness = (
        "import sys, time\n"
        "from qualify.images.containers import ContainerSpec, create, start\n"
        "from qualify.images.engine import connect\n"
        "spec = ContainerSpec(image=sys.argv[1], argv=('sleep', '60'), role='left')\n"
        "container = create(connect(), spec)\n"
        "start(container)\n"
        "print(container.name, flush=True)\n"
        "time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", harness, image.reference],
        cwd=ROOT,
        env=os.environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    assert sweep(engine) == []
    process.kill()
    process.wait()
    assert sweep(engine) == [name]
    assert not engine.containers.list(all=True, filters={"name": name})


def test_registry_that_is_down_is_the_machines_trouble(engine, image):
    with pytest.raises(MachineryError, match=r"push 127\.0\.0\.1:9"):
        push(engine, engine.images.get(BASE).id, registry="127.0.0.1:9", name="x", build_id="b" * 64)
