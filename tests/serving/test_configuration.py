"""What a server says of its configuration: kept without secrets and read back as figures."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from qualify.record import ResolvedConfiguration
from qualify.serving.configuration import CONFIGURATION, KeptConfiguration, keep_configuration, resolved
from qualify.serving.process import free_port
from tests.fake_server.starting import fake_server


async def test_configuration_is_kept_without_secrets(tmp_path: Path) -> None:
    async with fake_server(tmp_path, FAKE_GRAPH_MODE="2,0") as server:
        await keep_configuration(server.url, tmp_path)
    text = (tmp_path / CONFIGURATION).read_bytes()
    assert b"hf_secret" not in text
    kept = msgspec.json.decode(text, type=KeptConfiguration)
    assert kept.vllm_config["model_config"] == {
        "enforce_eager": False,
        "max_model_len": 32768,
        "hf_token": "removed",
    }
    assert kept.vllm_env == {"VLLM_SERVER_DEV_MODE": True, "VLLM_LOG_PASSWORD": "removed"}
    assert resolved(kept) == ResolvedConfiguration(
        graph_mode="FULL_DECODE_ONLY",
        capture_sizes=(1, 2, 4),
        enforce_eager=False,
        max_num_seqs=16,
        max_model_len=32768,
    )


async def test_server_without_the_endpoint(tmp_path: Path) -> None:
    async with fake_server(tmp_path, "no-server-info") as server:
        kept = await keep_configuration(server.url, tmp_path)
    assert resolved(kept) == ResolvedConfiguration(why="/server_info answers 404")


async def test_server_that_is_gone(tmp_path: Path) -> None:
    kept = await keep_configuration(f"http://127.0.0.1:{free_port()}", tmp_path)
    assert "does not answer" in kept.why
    assert (tmp_path / CONFIGURATION).exists()


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        (0, "NONE"),
        (1, "PIECEWISE"),
        (2, "FULL"),
        ([2, 0], "FULL_DECODE_ONLY"),
        ([2, 1], "FULL_AND_PIECEWISE"),
        ("FULL_AND_PIECEWISE", "FULL_AND_PIECEWISE"),
        ("full", "FULL"),
        (7, None),
        ([1, 2, 3], None),
        ("fast", None),
        (None, None),
        ({"a": 1}, None),
    ],
)
def test_modes_as_vllm_writes_them(said: object, mode: str | None) -> None:
    kept = KeptConfiguration(vllm_config={"compilation_config": {"cudagraph_mode": said}})
    assert resolved(kept).graph_mode == mode


def test_configuration_of_another_shape() -> None:
    kept = KeptConfiguration(
        vllm_config={"compilation_config": [1], "model_config": {"enforce_eager": "yes"}}
    )
    assert resolved(kept) == ResolvedConfiguration()
