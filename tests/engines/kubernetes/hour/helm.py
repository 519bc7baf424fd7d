"""The part of ``helm`` that the page types, by Helm's SDK: ``helm install NAME CHART -n NAMESPACE -f FILE`` and ``helm upgrade …``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import yaml
from helm_python import Config


def main() -> None:
    parser = argparse.ArgumentParser(prog="helm")
    parser.add_argument("what", choices=["install", "upgrade"])
    parser.add_argument("name")
    parser.add_argument("chart")
    parser.add_argument("-n", "--namespace", required=True)
    parser.add_argument("-f", "--values", type=Path, required=True)
    given = parser.parse_args()
    values = yaml.safe_load(given.values.read_text())
    with Config(kubeconfig_path=os.environ["KUBECONFIG"], namespace=given.namespace) as helm:
        told = getattr(helm, given.what)(given.chart, given.name, values)
    print((told.get("release") or told).get("name", told))


if __name__ == "__main__":
    main()
