"""References: what names something in a registry, and what does not."""

import pytest

from qualify.errors import UsageError
from qualify.registry.reference import check_tag, parse_reference

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:5000/a", ("127.0.0.1:5000", "a", "", "")),
        ("localhost/a/b:1.2", ("localhost", "a/b", "1.2", "")),
        (f"registry.example.com/team/a__b-c@{DIGEST}", ("registry.example.com", "team/a__b-c", "", DIGEST)),
        (f"[::1]:5000/a:v1@{DIGEST}", ("[::1]:5000", "a", "v1", DIGEST)),
    ],
)
def test_reads_and_writes_back(text, parts):
    found = parse_reference(text)
    assert (found.repository.registry, found.repository.name, found.tag, found.digest) == parts
    assert str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        "ubuntu",
        "library/ubuntu:22.04",
        "http://127.0.0.1:5000/a",
        "user:pass@127.0.0.1:5000/a",
        "127.0.0.1:5000/A",
        "127.0.0.1:5000/a/../b",
        "127.0.0.1:5000/a?x=1",
        "127.0.0.1:5000/a:",
        "127.0.0.1:5000/a@sha256:abc",
        "127.0.0.1:5000/a:t\n",
        "",
    ],
)
def test_refuses_the_rest(text):
    with pytest.raises(UsageError, match="is not of the form"):
        parse_reference(text)


@pytest.mark.parametrize(
    ("registry", "local"),
    [
        ("127.0.0.1:5000", True),
        ("localhost:5000", True),
        ("[::1]:5000", True),
        ("10.0.0.1:5000", False),
        ("127.0.0.1.example.com", False),
        ("localhost.example.com:5000", False),
    ],
)
def test_only_loopback_is_local(registry, local):
    assert parse_reference(f"{registry}/a").repository.is_local is local


@pytest.mark.parametrize("tag", ["", ".a", "-a", "a/b", "a" * 129, "a b", "a\n"])
def test_no_tags(tag):
    with pytest.raises(UsageError, match="is not a tag"):
        check_tag(tag)
