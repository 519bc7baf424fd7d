"""The commands of ``gpukernel kubernetes``: bad input gets one sentence, and classes are what the pool has."""

from __future__ import annotations

import tempfile
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from gpukernel.engines.kubernetes.claim_files import not_in_memory
from tests.conftest import Pool


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (("controller", "--round-trip", "gpu"), 2, "“gpu” says nothing; write --round-trip SERVER=VALUE."),
        (("controller", "--cluster", "a/b"), 2, "“a/b” is no name here; it has up to 51 small letters"),
        (("controller", "--kubeconfig", "/nowhere"), 5, "name its file with --kubeconfig or KUBECONFIG."),
        (("node", "--cluster", "A"), 2, "“A” is no name here; it has up to 51 small letters"),
        (("device-plugin", "--model", "v 100"), 2, "“v 100” is no name here"),
        (("device-plugin", "--model", ""), 2, "--model names no model"),
        (("device-plugin", "--model", "v100", "--cluster", "A"), 2, "“A” is no name here"),
        (("classes", "--max-memory", "4GB"), 2, "“4GB” is no quantity; write 655Mi or 2Gi."),
    ],
)
def test_bad_input_gets_one_sentence(
    lent_pool: Pool, words: tuple[str, ...], status: int, sentence: str
) -> None:
    done = lent_pool.gpukernel("kubernetes", *words)
    assert sentence in done.stderr
    assert (done.returncode, len(done.stderr.splitlines())) == (status, 1)


def test_secrets_are_not_written_to_a_disk(lent_pool: Pool) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        if not (kind := not_in_memory(Path(folder))):
            pytest.skip("/var/tmp is in memory here")
        words = ("node", "--claims", f"{folder}/claims", "--cdi", f"{folder}/cdi")
        done = lent_pool.gpukernel("kubernetes", *words)
        assert f"is on {kind}, and secrets belong in memory" in done.stderr
        assert done.returncode == 2
        assert not_in_memory(Path("/dev/shm")) == ""


def test_classes_are_of_the_devices_that_kubernetes_decides_over(lent_pool: Pool) -> None:
    done = lent_pool.gpukernel("kubernetes", "classes", "--max-count", "2")
    assert done.returncode == 0, done.stderr
    made = list(yaml.safe_load_all(done.stdout))
    assert [one["metadata"]["name"] for one in made] == ["gpukernel.io", "v100.gpukernel.io"]
    assert made[1]["spec"]["extendedResourceName"] == "gpukernel.io/v100-slice"
    (device,) = (one for one in lent_pool.devices() if one.decided_by == "kubernetes")
    model = device.name.removesuffix(" (simulated)")
    assert made[1]["spec"]["selectors"][1]["cel"]["expression"].endswith(f'.model == "{model}"')
    for one in made:
        kubernetes_validate.validate(one, "1.34", strict=True)
