"""What keeps a tag from becoming a release: ``python .ci/releasable.py v1.2.3``. Exit code 0 if nothing does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# No address that a user could visit (RFC 2606).
_RESERVED = re.compile(r'^\w+ = "https?://[^/"]*\.(?:example|invalid|test)[/"]', re.MULTILINE)


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Each reason against a release of ``root`` as ``tag``, with its remedy; empty if there is none."""
    version = _first(r'^__version__ = "([^"]+)"', root / "managedconsumer" / "_version.py")
    newest = _first(r"^(\S+) \(\d{4}-\d\d-\d\d\)$", root / "CHANGELOG.rst")
    fragments = sorted(path.name for path in (root / "changes.d").glob("*.*.rst"))
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, the version {version}: change managedconsumer/_version.py, or tag v{version}")
    if newest != version:
        found.append(f"CHANGELOG.rst begins with {newest}: run towncrier build --version {version}")
    if fragments:
        found.append(f"changes.d holds news that CHANGELOG.rst has not: {', '.join(fragments)}")
    if re.search(r"^Unreleased$", (root / "CHANGELOG.rst").read_text(encoding="utf-8"), re.MULTILINE):
        found.append('CHANGELOG.rst has a section "Unreleased": move its lines into that of the version')
    if _RESERVED.search((root / "pyproject.toml").read_text(encoding="utf-8")):
        found.append("the project's URLs in pyproject.toml are of a reserved domain: give the addresses that there are")
    return found


def _first(pattern: str, path: Path) -> str:
    found = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{path} holds nothing like {pattern}")
    return found[1]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    sys.exit("\n".join(problems(sys.argv[1])) or 0)
