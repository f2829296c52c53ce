from __future__ import annotations

from pathlib import Path

import pytest

from qualify.errors import UsageError
from qualify.serving.attach import AttachLauncher
from tests.fake_server.starting import fake_server


def test_url_elsewhere_is_refused() -> None:
    with pytest.raises(UsageError, match="this machine only"):
        AttachLauncher("http://10.0.0.1:8000")


async def test_attached_server_is_left_running(tmp_path: Path) -> None:
    async with fake_server(tmp_path) as server:
        attached = AttachLauncher(server.url).start()
        await attached.stop()
        assert attached.ended() is None
        assert server.ended() is None
