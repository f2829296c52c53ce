"""Which builder is taken, and what a failed build means."""

from pathlib import Path

import pytest

from qualify.errors import MachineryError, UsageError
from qualify.images.builders import Build, build, build_failure, find_command_line


def program(folder: Path, version: str, *, buildx: bool) -> str:
    folder.mkdir()
    path = folder / "docker"
    path.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] && echo "Docker version {version}, build x"\n'
        f'[ "$1" = buildx ] && {"echo github.com/docker/buildx v0.12" if buildx else "exit 1"}\n'
        "exit 0\n"
    )
    path.chmod(0o755)
    return str(folder)


def test_buildx_is_the_first_choice(tmp_path):
    old = program(tmp_path / "old", "20.10.24+dfsg1", buildx=False)
    new = program(tmp_path / "new", "28.2.2", buildx=True)
    found = find_command_line(f"{old}:{new}")
    assert found is not None
    assert (found.name, found.program) == ("buildx", f"{new}/docker")


def test_old_command_line_carries_buildkit_even_behind_a_new_one(tmp_path):
    new = program(tmp_path / "new", "28.2.2", buildx=False)
    old = program(tmp_path / "old", "20.10.24+dfsg1", buildx=False)
    found = find_command_line(f"{new}:{old}")
    assert found is not None
    assert found.program == f"{old}/docker"
    assert "BuildKit inside docker 20" in found.name


def test_without_either_there_is_none(tmp_path):
    assert find_command_line(program(tmp_path / "new", "28.2.2", buildx=False)) is None
    assert find_command_line(str(tmp_path)) is None


@pytest.mark.parametrize("line", ["RUN --mount=type=cache,target=/x true", "COPY --chmod=755 a b"])
def test_recipe_that_needs_buildkit_is_refused_without_it(tmp_path, line):
    (tmp_path / "Dockerfile").write_text(f"FROM scratch\n{line}\n")
    task = Build(context=tmp_path, tag="x:1", arguments={}, labels={})
    with pytest.raises(MachineryError, match="needs BuildKit"):
        build(object(), task, None)  # type: ignore[arg-type]


def test_patch_that_does_not_apply_is_the_users():
    error = build_failure(["#9 1.2 patching file x", "#9 1.3 PATCH DOES NOT APPLY: 001-a.patch"], "buildx")
    assert isinstance(error, UsageError)
    assert "001-a.patch" in str(error)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("write /x: no space left on device", "disk is full"),
        ("ERROR: Could not find a version that satisfies x (from versions: none)", "hides a TLS error"),
        ("dial tcp 127.0.0.1:1: connect: connection refused", "registry does not answer"),
    ],
)
def test_the_machines_trouble_comes_with_advice(line, said):
    error = build_failure(["step", line], "buildx")
    assert isinstance(error, MachineryError)
    assert said in str(error)


def test_recipe_that_only_mentions_a_patch_fails_as_itself():
    assert isinstance(build_failure(['RUN echo "PATCH APPLIES"', "exit code 1"], "buildx"), MachineryError)
