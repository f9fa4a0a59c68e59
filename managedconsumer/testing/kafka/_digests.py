"""The SHA-256 digests of the jars of the tested Kafka releases, in files beside this one.

A repository's own checksums find damage, but no jar that an attacker has replaced there.

``python -m managedconsumer.testing.kafka._digests DIRECTORY`` prints the file of the release whose jars are there (see
``managedconsumer broker`` for the cache); compare it with a second source before you commit it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

_HERE = Path(__file__).parent / "digests"


def trusted_digests(version: str) -> dict[str, str] | None:
    """Digest by file name of a release that is in this package, None for every other release."""
    file = _HERE / f"kafka-{version}.sha256"
    if not file.exists():
        return None
    lines = [line.split() for line in file.read_text(encoding="ascii").splitlines() if not line.startswith("#")]
    return {name: digest for digest, name in lines}


def digest_of(path: Path) -> str:
    """The file's SHA-256 (45 MB take about 0.1 s)."""
    found = hashlib.sha256()
    with open(path, "rb") as handle:
        while block := handle.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def first_difference(files: Iterable[Path], trusted: Mapping[str, str]) -> str | None:
    """Describe the first jar that is wrong; None when they are exactly the trusted ones."""
    there = {file.name: file for file in files}
    for name in sorted(there):
        if name not in trusted:
            return f"{name} is no part of this release: expected no such file, found SHA-256 {digest_of(there[name])}"
        found = digest_of(there[name])
        if found != trusted[name]:
            return f"{name} is not the expected file: expected SHA-256 {trusted[name]}, found {found}"
    missing = sorted(trusted.keys() - there.keys())
    return f"{', '.join(missing)} did not arrive" if missing else None


def _main(directory: str) -> None:
    for file in sorted(Path(directory).expanduser().glob("*.jar")):
        sys.stdout.write(f"{digest_of(file)}  {file.name}\n")


if __name__ == "__main__":
    _main(sys.argv[1])
