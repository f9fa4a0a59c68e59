"""The software bill of materials of a wheel, as CycloneDX 1.6: ``python .ci/sbom.py WHEEL > WHEEL.cdx.json``.

It says what the wheel's metadata say: the packages that pip installs with it, and those that extras bring (scope
"optional"), each with the versions that are allowed. The same wheel gives the same document.
"""

from __future__ import annotations

import email
import hashlib
import json
import re
import sys
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

#: What only those install who work on the package.
FOR_DEVELOPERS = {"bench", "docs", "fasttest", "lint", "test"}
EXTRA = re.compile(r"""extra == ["']([^"']+)["']""")


def purl(name: str) -> str:
    """The package URL of a project on PyPI."""
    return "pkg:pypi/" + re.sub(r"[-_.]+", "-", name).lower()


class Required(NamedTuple):
    """One requirement of the wheel."""

    extra: str  #: empty: pip always installs it
    name: str
    extras: frozenset[str]  #: those of the required package
    allowed: str  #: the versions


def read(requirement: str) -> Required:
    """A requirement as the metadata write it; raises ValueError for anything else."""
    wanted, _, marker = (part.strip() for part in requirement.partition(";"))
    match = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[([^]]*)\])?\s*(.*)", wanted)
    if match is None:
        raise ValueError(f"not a requirement: {requirement!r}")
    extra = EXTRA.search(marker)
    extras = frozenset(part.strip() for part in (match[2] or "").split(",") if part.strip())
    return Required(extra[1] if extra else "", match[1], extras, match[3].strip("() "))


def resolved(own: str, requirements: list[Required], extra: str) -> Iterator[Required]:
    """What ``extra`` brings, with the extras of the package itself (``own[...]``) that it names."""
    for each in requirements:
        if each.extra == extra and purl(each.name) == purl(own):
            for inner in sorted(each.extras):
                yield from (other._replace(extra=extra) for other in resolved(own, requirements, inner))
        elif each.extra == extra:
            yield each


def components(own: str, requirements: list[Required]) -> Iterator[dict[str, Any]]:
    """One component for each package; what pip always installs is required."""
    found: dict[str, dict[str, Any]] = {}
    extras = sorted({each.extra for each in requirements} - FOR_DEVELOPERS)
    for extra, name, _, allowed in (each for one in extras for each in resolved(own, requirements, one)):
        component = found.setdefault(
            purl(name),
            {
                "type": "library",
                "bom-ref": purl(name),
                "name": name,
                "scope": "optional",
                "purl": purl(name),
                "properties": [],
            },
        )
        if not extra:
            component["scope"] = "required"
        where = f"managedconsumer:extra:{extra}" if extra else "managedconsumer:always"
        said = {"name": where, "value": allowed or "any version"}
        if said not in component["properties"]:
            component["properties"].append(said)
    yield from (found[key] for key in sorted(found))


def document(wheel: Path) -> dict[str, Any]:
    """The whole document; raises ValueError for a file that is no wheel."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
        if len(names) != 1:
            raise ValueError(f"{wheel} is no wheel: {len(names)} files METADATA")
        metadata = email.message_from_bytes(archive.read(names[0]))
    name, version = str(metadata["Name"]), str(metadata["Version"])
    parts = list(components(name, [read(str(each)) for each in metadata.get_all("Requires-Dist") or []]))
    own = f"{purl(name)}@{version}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": name,
                "version": version,
                "purl": own,
                "licenses": [{"license": {"id": str(metadata["License-Expression"] or metadata["License"])}}],
                "hashes": [{"alg": "SHA-256", "content": digest}],
                "properties": [{"name": "managedconsumer:file", "value": wheel.name}],
            }
        },
        "components": parts,
        "dependencies": [
            {"ref": own, "dependsOn": [part["bom-ref"] for part in parts]},
            *({"ref": part["bom-ref"]} for part in parts),
        ],
    }


if __name__ == "__main__":
    json.dump(document(Path(sys.argv[1])), sys.stdout, indent=1)
    sys.stdout.write("\n")
