"""Containers of an image under test: never root, no capabilities, only /tmp and given mounts to write to."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docker import DockerClient
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.types import DeviceRequest, Mount
from requests.exceptions import ConnectionError as NoAnswerError
from requests.exceptions import ReadTimeout

from qualify.errors import MachineryError
from qualify.images.engine import engine_errors

HARNESS_LABEL = "io.qualify.harness"
ROLE_LABEL = "io.qualify.role"
# What distributions call "nobody" differs; this number belongs to nobody in all of them.
_NOBODY = 65532
_MIB = 2**20
_BOOT = Path("/proc/sys/kernel/random/boot_id")
# Fields of /proc/PID/stat after the name, which may hold blanks; the first of them is the third of all.
_BEGAN = 22 - 3
# The only place that can be written to; libraries and vLLM put their caches there.
_WRITABLE = {
    "HOME": "/tmp",
    "XDG_CACHE_HOME": "/tmp/cache",
    "XDG_CONFIG_HOME": "/tmp/config",
    "VLLM_CACHE_ROOT": "/tmp/cache/vllm",
    "VLLM_CONFIG_ROOT": "/tmp/config/vllm",
    "TORCHINDUCTOR_CACHE_DIR": "/tmp/cache/inductor",
    "TRITON_CACHE_DIR": "/tmp/cache/triton",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A file or folder of the machine inside a container.

    Attributes:
        source: Where it lies on the machine.
        target: Where it is in the container.
        writable: False mounts it read-only.
    """

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """One container.

    Attributes:
        image: ``NAME@sha256:...``.
        argv: Program and arguments; the image's own entry point is not used.
        environment: Variables, as (name, value).
        role: What it is for; part of its name.
        binds: What it sees of the machine.
        on_network: True gives it the machine's network, for a server on 127.0.0.1; False gives it none.
        memory_bytes: Most memory.
        pids: Most processes and threads.
        shm_bytes: Size of /dev/shm.
        tmp_bytes: Size of /tmp.
        gpus: How many GPUs; None for none.
    """

    image: str
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    role: str
    binds: tuple[Bind, ...] = ()
    on_network: bool = False
    memory_bytes: int = 4096 * _MIB
    pids: int = 512
    shm_bytes: int = 256 * _MIB
    tmp_bytes: int = 1024 * _MIB
    gpus: int | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """How a container's program ended.

    Attributes:
        exit_code: Its exit code.
        stdout: Its standard output.
        stderr: Its standard error.
        out_of_memory: True where it reached its memory limit.
    """

    exit_code: int
    stdout: str
    stderr: str
    out_of_memory: bool


def unprivileged_user() -> tuple[int, int]:
    """User and group of every container: the harness's own, or nobody's where that is root."""
    return (os.getuid(), os.getgid()) if os.getuid() else (_NOBODY, _NOBODY)


def hand_over(path: Path) -> None:
    """Makes a file or folder writable for the containers' user."""
    if not os.getuid():
        os.chown(path, *unprivileged_user())


def create(client: DockerClient, spec: ContainerSpec) -> Container:
    """Makes a container; does not start it.

    Args:
        client: The engine.
        spec: What it is.

    Returns:
        The container.

    Raises:
        MachineryError: The engine cannot make it: no such image, or no runtime for GPUs.
    """
    if spec.gpus is not None:
        _need_gpu_runtime(client)
    user, group = unprivileged_user()
    with engine_errors(f"create a container of {spec.image}"):
        return client.containers.create(
            spec.image,
            command=list(spec.argv[1:]),
            entrypoint=[spec.argv[0]],
            name=f"qualify-{spec.role}-{secrets.token_hex(4)}",
            environment=_WRITABLE | dict(spec.environment),
            labels={HARNESS_LABEL: _harness(), ROLE_LABEL: spec.role},
            mounts=[
                Mount(bind.target, str(bind.source.absolute()), type="bind", read_only=not bind.writable)
                for bind in spec.binds
            ],
            network_mode="host" if spec.on_network else "none",
            user=f"{user}:{group}",
            working_dir="/tmp",
            read_only=True,
            tmpfs={"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={spec.tmp_bytes}"},
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            init=True,
            mem_limit=spec.memory_bytes,
            memswap_limit=spec.memory_bytes,
            pids_limit=spec.pids,
            shm_size=spec.shm_bytes,
            device_requests=[DeviceRequest(count=spec.gpus, capabilities=[["gpu"]])] if spec.gpus else None,
        )


def _need_gpu_runtime(client: DockerClient) -> None:
    with engine_errors("ask the engine for its runtimes"):
        info = client.info()
    if "nvidia" not in info.get("Runtimes", {}):
        raise MachineryError(
            "the engine has no NVIDIA runtime, so a container gets no GPU",
            advice="Install the NVIDIA Container Toolkit and run `nvidia-ctk runtime configure`.",
        )


def start(container: Container) -> None:
    """Starts a container; one that cannot be started is removed.

    Raises:
        MachineryError: It cannot be started.
    """
    try:
        with engine_errors(f"start container {container.name}"):
            container.start()
    except MachineryError:
        remove(container)
        raise


def remove(container: Container) -> None:
    """Ends a container, if it runs, and removes it. Does nothing where it is gone.

    Raises:
        MachineryError: The engine cannot.
    """
    with engine_errors(f"remove container {container.name}"), contextlib.suppress(NotFound):
        try:
            container.remove(force=True)
        except APIError as error:
            if error.status_code != 409:  # 409: another removal is under way
                raise


@contextlib.contextmanager
def _started(client: DockerClient, spec: ContainerSpec) -> Iterator[Container]:
    container = create(client, spec)
    try:
        start(container)
        yield container
    finally:
        remove(container)


def run_to_end(client: DockerClient, spec: ContainerSpec, *, within_s: float) -> Output:
    """Runs a container's program to its end, and removes the container.

    Args:
        client: The engine.
        spec: What it is.
        within_s: Longest time that it may take.

    Returns:
        How it ended.

    Raises:
        MachineryError: It could not be started, or did not end in time.
    """
    with _started(client, spec) as container:
        with engine_errors(f"wait for container {container.name}"):
            try:
                container.wait(timeout=within_s)
            except (ReadTimeout, NoAnswerError) as error:
                raise MachineryError(
                    f"{spec.role}: not done after {within_s:.0f} s in a container of {spec.image}"
                ) from error
        with engine_errors(f"read the output of container {container.name}"):
            container.reload()
            state = container.attrs["State"]
            return Output(
                exit_code=int(state["ExitCode"]),
                stdout=container.logs(stdout=True, stderr=False).decode(errors="replace"),
                stderr=container.logs(stdout=False, stderr=True).decode(errors="replace"),
                out_of_memory=bool(state["OOMKilled"]),
            )


def sweep(client: DockerClient) -> list[str]:
    """Removes containers that a harness of this machine left behind when it was killed.

    Args:
        client: The engine.

    Returns:
        Names of the removed containers.
    """
    removed = []
    with engine_errors("look for containers that were left behind"):
        found = client.containers.list(all=True, filters={"label": HARNESS_LABEL}, ignore_removed=True)
    for container in found:
        if not _may_run(container.labels[HARNESS_LABEL]):
            remove(container)
            removed.append(str(container.name))
    return removed


def _harness() -> str:
    """This process, told apart from a later one with the same id by when it began.

    Process ids mean something only within their namespace; harnesses in containers may share an engine. The
    date of the beginning would move when the clock is set: it is counted from the start of the machine.
    """
    return f"{_namespace()}:{_BOOT.read_text().strip()}:{os.getpid()}:{_began(os.getpid())}"


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid").strip("pid:[]")


def _began(pid: int) -> int:
    """Clock ticks from the start of the machine to that of a process (proc_pid_stat(5), field 22).

    Raises:
        OSError: There is no such process.
    """
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(stat.rpartition(")")[2].split()[_BEGAN])


def _may_run(harness: str) -> bool:
    """True where a harness runs, or cannot be seen from here."""
    if harness == _harness():
        return True
    try:
        namespace, boot, pid, began = harness.split(":")
        if namespace != _namespace():
            return True
        return boot == _BOOT.read_text().strip() and _began(int(pid)) == int(began)
    except (OSError, ValueError):
        return False
