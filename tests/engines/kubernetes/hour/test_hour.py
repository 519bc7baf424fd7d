"""The page's hour, as it stands: from an empty cluster of Kubernetes' own programs to “V100 × 0.02” in a pod, with images of this tree."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_a_pod_of_the_hour_sees_its_slice(hour: dict[str, str]) -> None:
    assert hour["kubectl logs first"] == "0 0 655 MiB\n"
