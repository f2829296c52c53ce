from __future__ import annotations

import pytest

from qualify.bench import judge as bench


def test_benchmark_judges_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["10240"]) == 0
    assert "10,240 positions of each of 4 runs: qualified" in capsys.readouterr().out


@pytest.mark.parametrize("limit", ["SECONDS", "BYTES"])
def test_benchmark_fails_where_a_limit_is_exceeded(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(bench, limit, 0)
    assert bench.main(["1280"]) == 1
