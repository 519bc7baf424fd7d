"""The options of ``gpukernel kubernetes``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Cdi", "Claims", "Cluster", "Every", "Kubeconfig", "Libraries", "Share", "Sockets"]

Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="How to reach the cluster. Else KUBECONFIG, else the pod's service account, else ~/.kube/config.",
    ),
]
Cluster = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="The cluster's name, where several clusters share one pool; the same for controller and nodes.",
    ),
]
Cdi = Annotated[Path, typer.Option(metavar="DIR", help="Where the container runtime looks for CDI files.")]
Claims = Annotated[
    Path,
    typer.Option(metavar="DIR", help="For lease files; in memory, and the same path on the node itself."),
]
Libraries = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Copy the client's libraries there, the same path on the node itself; needed where this runs in a container.",
    ),
]
Sockets = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="DIR",
        help="Folder “containers” of an agent's state directory on this node; may be repeated.",
    ),
]
Every = Annotated[
    float, typer.Option(min=0.1, max=60, metavar="SECONDS", help="Between two looks at the pool.")
]
Share = Annotated[
    float,
    typer.Option(
        min=0.001,
        max=1,
        help="Part of a device that a claim without a size gets, and so does “limits: gpukernel.io/v100-slice: 1”.",
    ),
]
