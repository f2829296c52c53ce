"""Wrong options and files, and servers that already run."""

import signal
import socket
import subprocess
import sys

import pytest

from qualify.__main__ import main
from qualify.errors import ExitCode
from tests.projects import ENVIRONMENT, ROOT, Project, assert_judged_again_the_same

LIVE = ROOT / "reports/evidence/h200/live.tar.xz"


def test_port_taken(project):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        outcome = project.run("--port", str(taken.getsockname()[1]))
    assert outcome.code == ExitCode.USAGE
    assert str(taken) not in outcome.err
    assert "port" in outcome.err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model__path": "nowhere"}, "no model there"),
        ({"serving__python": "nowhere/python"}, "interpreter does not exist"),
        ({"scenarios": ["none.yaml"]}, "cannot be read"),
    ],
)
def test_wrong_usage(project, changes, said):
    project.change(**changes)
    outcome = project.run()
    assert outcome.code == ExitCode.USAGE
    assert said in outcome.err
    assert "Traceback" not in outcome.err
    assert project.bundles() == []


def attach(project: Project, arm: str, environment: dict[str, str]) -> tuple[subprocess.Popen, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.fake_server",
            "--model",
            str(project.root / "model"),
            "--served-model-name",
            "fake",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ],
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return process, f"{arm}=http://127.0.0.1:{port}"


@pytest.mark.parametrize(("how", "code"), [("", ExitCode.INCONCLUSIVE), ("wrong-row", ExitCode.REJECTED)])
def test_attached_servers(project, how, code):
    baseline, first = attach(project, "baseline", {"FAKE_NOISE": "0.002"})
    candidate, second = attach(project, "candidate", {"FAKE_NOISE": "0.002", "FAKE_MISBEHAVE": how})
    try:
        process = project.start("--attach", first, "--attach", second)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, out + err
        assert "unbound" in out
        assert baseline.poll() is None
        assert candidate.poll() is None
    finally:
        for server in (baseline, candidate):
            server.kill()
            server.wait()
    assert_judged_again_the_same(project)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--attach", "baseline=http://127.0.0.1:1"], "needs at least"),
        (
            ["--attach", "baseline=http://example.org:80", "--attach", "candidate=http://127.0.0.1:1"],
            "this machine",
        ),
        (["--attach", "both=http://127.0.0.1:1"], "ARM=URL"),
        (["--colour"], "No such option"),
    ],
)
def test_wrong_options(project, options, said):
    outcome = project.run(*options)
    assert outcome.code == ExitCode.USAGE
    assert said in outcome.err


@pytest.mark.parametrize("command", [["lock"], ["image"], ["inspect", "--into", "new"]])
def test_a_release_without_an_image_is_refused_before_an_engine_is_asked_for(project, command):
    done = subprocess.run(
        [sys.executable, "-m", "qualify", *command, str(project.release)],
        env={**ENVIRONMENT, "DOCKER_HOST": "tcp://127.0.0.1:1"},
        cwd=project.root,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert "has no key image" in done.stderr
    assert not (project.root / "new").exists()


@pytest.mark.parametrize(
    ("raised", "code"), [(KeyboardInterrupt(), ExitCode.INTERRUPTED), (EOFError("cut"), ExitCode.MACHINERY)]
)
def test_only_an_interruption_reads_as_one(monkeypatch, capsys, raised, code):
    """click takes the end of a file for Ctrl-D."""

    def fail(*_):
        raise raised

    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("qualify.cli.coverage.coverage_document", fail)
    monkeypatch.setattr(sys, "argv", ["qualify", "coverage", str(LIVE)])
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert ended.value.code == code
    assert ("interrupted" in capsys.readouterr().err) is (code == ExitCode.INTERRUPTED)
