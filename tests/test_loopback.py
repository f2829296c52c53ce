from __future__ import annotations

import pytest

from qualify.errors import UsageError
from qualify.loopback import http_client, loopback_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://localhost:1", "http://localhost:1"),
        ("http://127.8.9.1:80", "http://127.8.9.1:80"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_loopback_is_taken(text: str, url: str) -> None:
    assert loopback_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "http://10.0.0.1:8000",
        "http://example.org:8000",
        "http://127.0.0.1.example.org:8000",
        "http://127.0.0.1@example.org:8000",
        "http://0.0.0.0:8000",
        "http://[::2]:8000",
        "http://localhost.:8000x",
        "https://127.0.0.1:8000",
        "127.0.0.1:8000",
        "http://127.0.0.1",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:8000/v1",
        "http://127.0.0.1:8000/?a=b",
        "http://user:word@127.0.0.1:8000",
        "http://[::1:8000",
        "",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        loopback_url(text)
    assert "127.0.0.1" in caught.value.advice
    with pytest.raises(UsageError):
        http_client(text, timeout_s=1)
