from __future__ import annotations

import signal

import pytest

from qualify.record import ArmState
from qualify.serving.endings import classify, told_to_stop
from qualify.serving.launcher import Exit

QUIET = ("INFO: loading", "INFO: ready")
ABORTED = (*QUIET, "Fatal Python error: Aborted", "", 'Thread 0x01: File "x.py"')
TRACEBACK = (*QUIET, "Traceback (most recent call last):", '  File "x"', "ValueError: no kernel for this")
TOLD = (*QUIET, "INFO [shutdown] EngineCore: trigger received signal=SIGTERM")
NOTICED = (
    *QUIET,
    "ERROR Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.",
    "ERROR EngineCore encountered a fatal error.",
    "Process EngineCore:",
    "INFO [shutdown] API server: shutdown triggered",
)


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize(
    ("seen", "log"),
    [
        (Exit(returncode=-signal.SIGSEGV), QUIET),
        (Exit(returncode=-signal.SIGABRT), QUIET),
        (Exit(returncode=-signal.SIGBUS), QUIET),
        (Exit(returncode=-signal.SIGFPE), QUIET),
        (Exit(returncode=-signal.SIGILL), QUIET),
        (Exit(returncode=1), QUIET),
        (Exit(returncode=1), TRACEBACK),
        (Exit(returncode=0), ABORTED),
        (Exit(returncode=None, lost_child="engine"), ABORTED),
        (Exit(returncode=0, lost_child="engine"), ABORTED),
        (Exit(returncode=None, lost_child="engine"), ("CUDA error: an illegal memory access was met",)),
        (Exit(returncode=0, lost_child="engine"), ("EngineCore encountered a fatal error.",)),
        (Exit(returncode=1), ("RuntimeError: Failed core proc(s): {'EngineCore': -11}",)),
        (Exit(returncode=-signal.SIGABRT, out_of_memory=True), ABORTED),
        (Exit(returncode=None, lost_child="engine"), ("!!!!!!! Segfault encountered !!!!!!!", *NOTICED)),
        (Exit(returncode=None, lost_child="engine"), (*ABORTED, *NOTICED, *TOLD)),
        (Exit(returncode=0, lost_child="engine"), ("Process EngineCore:", *TRACEBACK, *NOTICED)),
    ],
)
def test_its_own_doing(seen: Exit, log: tuple[str, ...], ready: bool) -> None:
    assert classify(seen, log, ready=ready).state is (ArmState.DIED if ready else ArmState.START_FAILED)


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize(
    ("seen", "log"),
    [
        (Exit(returncode=-signal.SIGKILL), QUIET),
        (Exit(returncode=-signal.SIGTERM), QUIET),
        (Exit(returncode=0), QUIET),
        (Exit(returncode=None, lost_child="engine"), QUIET),
        (Exit(returncode=0, lost_child="engine"), ("EngineDeadError: EngineCore encountered an issue.",)),
        (Exit(returncode=1), ("RuntimeError: Failed core proc(s): {'EngineCore': -9}",)),
        (Exit(returncode=0), TOLD),
        (Exit(returncode=1), TOLD),
        (Exit(returncode=0, lost_child="engine"), (*TOLD, *ABORTED)),
        # a killed worker: what the engine says after it has noticed is consequence
        (Exit(returncode=None, lost_child="worker"), NOTICED),
    ],
)
def test_killed_from_outside(seen: Exit, log: tuple[str, ...], ready: bool) -> None:
    assert classify(seen, log, ready=ready).state is ArmState.KILLED


@pytest.mark.parametrize(
    ("seen", "line", "word"),
    [
        (Exit(returncode=1), "OSError: [Errno 98] Address already in use", "port"),
        (Exit(returncode=1), "OSError: [Errno 28] No space left on device", "disk"),
        (Exit(returncode=1), "OSError: [Errno 12] Cannot allocate memory", "memory"),
        (Exit(returncode=1), "ModuleNotFoundError: No module named 'vllm'", "lacks the module vllm"),
        (Exit(returncode=1), "/venv/bin/python: No module named tests.nothing", "lacks the module tests"),
        (Exit(returncode=1), "RuntimeError: No CUDA GPUs are available", "GPU"),
        (Exit(returncode=-signal.SIGKILL, out_of_memory=True), "INFO: ready", "lack of memory"),
        (Exit(returncode=None, lost_child="engine", out_of_memory=True), "INFO: ready", "lack of memory"),
    ],
)
def test_the_machines_trouble(seen: Exit, line: str, word: str) -> None:
    ending = classify(seen, (*QUIET, line), ready=False)
    assert ending.state is ArmState.MACHINERY
    assert word in ending.detail


SURVIVED = (
    "WARNING 12-01 10:00:00 [cache.py:9] compile cache not written: [Errno 28] No space left on device",
    "ERROR 12-01 10:00:00 [cache.py:9] compile cache not written: [Errno 28] No space left on device",
    "ERROR 12-01 10:00:00 [shm.py:2] OSError: [Errno 98] Address already in use; trying the next port",
)
SERVES_ON = ("(APIServer pid=3) INFO 12-01 11:00:00 [loggers.py:1] Avg generation throughput",)
ILLEGAL = (
    "(EngineCore pid=9) torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "Fatal Python error: Aborted",
)


@pytest.mark.parametrize("line", SURVIVED)
def test_trouble_that_a_ready_server_outlived_excuses_no_later_death(line: str) -> None:
    ending = classify(Exit(returncode=-6), (*QUIET, line, *SERVES_ON, *ILLEGAL), ready=True)
    assert ending.state is ArmState.DIED
    assert "illegal memory access" in ending.detail


def test_what_fails_in_the_clean_up_excuses_no_death() -> None:
    after = ("OSError: [Errno 28] No space left on device", *SERVES_ON)
    assert classify(Exit(returncode=-6), (*QUIET, *ILLEGAL, *after), ready=True).state is ArmState.DIED


@pytest.mark.parametrize(
    "last",
    [
        ("OSError: [Errno 28] No space left on device",),
        (
            "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory",
            "Fatal Python error: Aborted",
        ),
        (
            "(EngineCore pid=9) ERROR 12-01 [core.py:1] EngineCore encountered a fatal error.",
            "(EngineCore pid=9) ERROR 12-01 [core.py:1] Traceback (most recent call last):",
            *SERVES_ON,
            "(EngineCore pid=9) ERROR 12-01 [core.py:1] OSError: [Errno 28] No space left on device",
        ),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",),
    ],
)
def test_a_ready_server_that_dies_of_the_machines_trouble(last: tuple[str, ...]) -> None:
    after = ("EngineDeadError: EngineCore encountered an issue.", *SERVES_ON)
    ending = classify(Exit(returncode=1), (*QUIET, *SERVES_ON, *last, *after), ready=True)
    assert ending.state is ArmState.MACHINERY


def test_a_warning_is_no_reason_not_to_start() -> None:
    assert classify(Exit(returncode=1), (SURVIVED[0], *TRACEBACK), ready=False).state is ArmState.START_FAILED


def test_told_to_stop() -> None:
    assert "SIGTERM" in told_to_stop(TOLD)
    assert told_to_stop(QUIET) == ""
    assert told_to_stop((*ABORTED, *TOLD)) == ""


def test_missing_optional_modules_are_not_the_machines_trouble() -> None:
    log = ("WARNING: No module named 'triton'", *TRACEBACK)
    assert classify(Exit(returncode=1), log, ready=False).state is ArmState.START_FAILED


def test_detail_names_what_a_child_raised() -> None:
    prefix = "(EngineCore pid=7) ERROR 01-01 [core.py:1510]"
    log = (
        f"{prefix} EngineCore failed to start.",
        f"{prefix} Traceback (most recent call last):",
        f'{prefix}   File "x.py", line 3, in load',
        f"{prefix} safetensors.SafetensorError: header too short",
        "RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': 1}",
    )
    detail = classify(Exit(returncode=1), log, ready=False).detail
    assert detail.endswith("EngineCore failed to start. safetensors.SafetensorError: header too short")


def test_detail_leaves_consequences_out() -> None:
    log = (*ABORTED, "EngineDeadError: EngineCore encountered an issue.", "ValueError: on top of it")
    seen = Exit(returncode=None, lost_child="engine")
    assert classify(seen, log, ready=True).detail == "engine vanished: Fatal Python error: Aborted"


def test_details_name_code_signal_and_reason() -> None:
    assert "code 1: ValueError: no kernel" in classify(Exit(returncode=1), TRACEBACK, ready=False).detail
    assert "SIGKILL" in classify(Exit(returncode=-9), QUIET, ready=True).detail
    assert "Fatal Python error: Aborted" in classify(Exit(returncode=-6), ABORTED, ready=True).detail
    assert "code 3; its last line: INFO: ready" in classify(Exit(returncode=3), QUIET, ready=True).detail
    assert "code 3 without a word" in classify(Exit(returncode=3), (), ready=True).detail
    usage = "api_server.py: error: unrecognized arguments: --nonsense"
    assert "refusing its arguments" in classify(Exit(returncode=2), (usage,), ready=False).detail
    assert "engine vanished" in classify(Exit(returncode=None, lost_child="engine"), QUIET, ready=True).detail
