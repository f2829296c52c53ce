"""Wheels: the pinned ones and no others."""

from pathlib import Path

import pytest

from qualify.errors import UsageError
from qualify.evidence.digests import sha256_bytes
from qualify.images.wheels import lock_wheels


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "first-1.0-py3-none-any.whl").write_bytes(b"first")
    (wheels / "Second_Part-2.1+cpu-py3-none-any.whl").write_bytes(b"second")
    return wheels


def pins(folder: Path, text: str) -> Path:
    path = folder.parent / "pins.txt"
    path.write_text(text)
    return path


def test_each_pin_gets_its_wheel_and_its_hash(folder):
    found = lock_wheels(pins(folder, "# why\nsecond-part==2.1+cpu\nfirst==1.0  # more\n"), folder)
    assert [(wheel.name, wheel.version) for wheel in found] == [("first", "1.0"), ("second-part", "2.1+cpu")]
    assert found[0].requirement == f"first==1.0 --hash=sha256:{sha256_bytes(b'first')}"


def test_pinned_hash_is_compared(folder):
    good = f"first==1.0 \\\n    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{sha256_bytes(b'first')}\n"
    assert len(lock_wheels(pins(folder, good), folder)) == 1
    (folder / "first-1.0-py3-none-any.whl").write_bytes(b"First")
    with pytest.raises(UsageError, match=r"first-1.0-py3-none-any.whl: its SHA-256 is .* not what"):
        lock_wheels(pins(folder, good), folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("third==1.0\n", "third==1.0: no wheel in"),
        ("first==2.0\n", "first==2.0: no wheel in"),
        ("first>=1.0\n", "no pin of the form"),
        ("first\n", "no pin of the form"),
        ("-r other.txt\n", "no pin of the form"),
    ],
)
def test_what_is_not_pinned_or_not_there_is_refused(folder, text, said):
    with pytest.raises(UsageError, match=said):
        lock_wheels(pins(folder, text), folder)


def test_two_wheels_of_one_pin_are_refused(folder):
    (folder / "first-1.0-cp311-cp311-linux_x86_64.whl").write_bytes(b"")
    with pytest.raises(UsageError, match=r"first-1.0-cp311.*first-1.0-py3"):
        lock_wheels(pins(folder, "first==1.0\n"), folder)


def test_missing_folder_says_how_to_make_it(tmp_path):
    with pytest.raises(UsageError, match="make wheels"):
        lock_wheels(pins(tmp_path / "x", "first==1.0\n"), tmp_path / "nowhere")
