"""The documentation as a site: it builds without a warning, and no link in it leads nowhere."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

DOCS = Path(__file__).parent.parent / "docs"

pytestmark = pytest.mark.slow


class Links(HTMLParser):
    """The targets and the anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("id"):
            self.anchors.add(str(found["id"]))
        if tag == "a" and found.get("href"):
            self.targets.append(str(found["href"]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site").resolve()
    words = ["-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(target)]
    built = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=280)
    assert built.returncode == 0, built.stderr
    return target


def test_every_link_leads_somewhere(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html") if "_static" not in page.parts}
    assert {site / path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.rst")} <= set(pages)
    broken = []
    for where, page in pages.items():
        for target in page.targets:
            path, anchor = urldefrag(unquote(target))
            if "://" in path or path.startswith("mailto:"):
                continue
            leads_to = (where.parent / path).resolve() if path else where
            if not leads_to.exists() or (anchor and anchor not in pages[leads_to].anchors):
                broken.append(f"{where.relative_to(site)}: {target}")
    assert not broken


def test_each_page_has_a_search_field_a_dark_mode_and_copy_buttons(site: Path) -> None:
    for path in DOCS.rglob("*.rst"):
        text = (site / path.relative_to(DOCS).with_suffix(".html")).read_text(encoding="utf-8")
        assert "sidebar-search" in text and "theme-toggle" in text and "copybutton.js" in text, path


def test_a_search_finds_options_errors_and_tasks(site: Path) -> None:
    """In the index that the page's script searches; its words are stems."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("{") : text.rindex("}") + 1])
    expected = {
        "queued_max_byt": "reference/options",
        "fencedstoreerror": "howto/stores",
        "gunicorn": "howto/recipes",
        "doctor": "reference/commands",
    }
    for word, page in expected.items():
        places = index["terms"].get(word, []), index["titleterms"].get(word, [])
        numbers = {n for found in places for n in (found if isinstance(found, list) else [found])}
        assert page in {index["docnames"][n] for n in numbers}, word


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    import managedconsumer

    anchors = Links(site / "reference" / "api.html").anchors
    documented = {anchor.rpartition(".")[2] for anchor in anchors}
    values = {"CompressionType", "OffsetAndMetadata", "OffsetResetStrategy", "OffsetType", "TopicPartition"}
    protocols = {"RangeProtocol", "RoundRobinProtocol"}
    assert set(managedconsumer.__all__) - values - protocols - {"__version__"} <= documented
