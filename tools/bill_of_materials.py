"""The bill of materials of an image: every Python distribution and every Debian package in its root file system, as CycloneDX 1.6.

The same file system gives the same text: it has no time and no random number.
"""

from __future__ import annotations

import email
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

__all__ = ["bill_of_materials"]

Component = dict[str, Any]


def bill_of_materials(root: Path, name: str, version: str, base: str, image: str) -> str:
    """Return the bill of the file system at `root` as JSON.

    Parameters
    ----------
    name, version
        Of the image, as people call it.
    base
        What it was built on.
    image
        Its id, which is unique.
    """
    parts = {part["bom-ref"]: part for part in (*_distributions(root), *_packages(root))}
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, image)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": "image",
                "name": name,
                "version": version,
                "properties": [
                    {"name": "gpukernel:base", "value": base},
                    {"name": "gpukernel:image", "value": image},
                ],
            }
        },
        "components": [parts[key] for key in sorted(parts)],
        "dependencies": [{"ref": "image", "dependsOn": sorted(parts)}],
    }
    return json.dumps(bill, indent=1, ensure_ascii=False) + "\n"


def _component(purl: str, name: str, version: str, licence: str) -> Component:
    part: Component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return part | ({"licenses": [{"license": {"name": licence}}]} if licence else {})


def _distributions(root: Path) -> Iterator[Component]:
    for file in root.glob("**/*.dist-info/METADATA"):
        said = email.message_from_bytes(file.read_bytes())
        name, version = str(said["Name"]), str(said["Version"])
        short = name.lower().replace("_", "-").replace(".", "-")
        licence = str(said["License-Expression"] or said["License"] or "").partition("\n")[0][:100]
        yield _component(f"pkg:pypi/{short}@{quote(version)}", name, version, licence)


def _packages(root: Path) -> Iterator[Component]:
    status = root / "var/lib/dpkg/status"
    for paragraph in status.read_text().split("\n\n") if status.exists() else ():
        said = email.message_from_string(paragraph)
        if said["Status"] == "install ok installed":
            name, version = str(said["Package"]), str(said["Version"])
            purl = f"pkg:deb/debian/{quote(name)}@{quote(version, safe='')}?arch={said['Architecture']}"
            yield _component(purl, name, version, "")
