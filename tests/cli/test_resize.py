"""The size and place that commands ask for."""

from __future__ import annotations

from tests.conftest import Pool


def test_a_filter_names_server_and_model(gpu1_pool: Pool) -> None:
    words = ("run", "-p", "0.1", "--wait", "0", "--filter")
    assert gpu1_pool.gpukernel(*words, "model=v100 and server=gpu1", "--", "true").returncode == 0
    for wish, sentence in (
        ("server=gpu9", "A server named “gpu9” has no device"),
        ("model=T4 and server=gpu1", "A server named “gpu1” has no T4; it has Tesla V100"),
        ("driver=5", "“driver=5” is no filter"),
    ):
        refused = gpu1_pool.gpukernel(*words, wish, "--", "true")
        assert refused.returncode in (1, 2)
        assert sentence in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
