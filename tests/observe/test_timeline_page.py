"""The timeline as a person sees it: the README's picture, and the page in a browser."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from managedconsumer import cli
from tests.observe import browser
from tests.observe.picture import PICTURE, RECORDING, draw

SVG = "{http://www.w3.org/2000/svg}"
README = Path(__file__).parents[2] / "README.rst"
#: Run in the browser after the page: where each bar is, and what a person would hit who points at its middle.
LOOK = """
<script>
const seen = {bars: [], wide: document.documentElement.scrollWidth, window: innerWidth, heading: null};
for (const group of document.querySelectorAll("g.span")) {
  const box = group.querySelector("rect").getBoundingClientRect();
  const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 3);
  seen.bars.push({width: box.width, left: box.left, right: box.right, top: box.top, bottom: box.bottom,
    title: group.querySelector("title").textContent, hit: hit !== null && group.contains(hit),
    fill: getComputedStyle(group.querySelector("rect")).fill});
}
seen.heading = document.querySelector("h1").innerText;
const answer = document.createElement("pre");
answer.id = "seen";
answer.textContent = JSON.stringify(seen);
document.body.append(answer);
</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What ``managedconsumer timeline -o out.html`` writes."""
    path = tmp_path_factory.mktemp("page") / "out.html"
    assert cli.main(["timeline", str(RECORDING), "-o", str(path)]) == 0
    return path.read_text(encoding="utf-8")


def test_the_readme_shows_the_picture_and_it_is_what_the_package_draws() -> None:
    """If this fails after a change of the drawing: ``python -m tests.observe.picture``."""
    assert f".. image:: docs/{PICTURE.name}\n" in README.read_text(encoding="utf-8")
    assert PICTURE.read_text(encoding="utf-8") == draw(RECORDING.read_text(encoding="utf-8"))


def test_the_page_is_well_formed(page: str) -> None:
    """As XML, which is stricter than HTML: every element is closed in its turn, every attribute is quoted."""
    body = page.removeprefix("<!DOCTYPE html>\n").replace('<meta charset="utf-8">', '<meta charset="utf-8"/>')
    root = ET.fromstring(body)
    assert [child.tag for child in root] == ["head", "body"]
    picture = root.find(f"./body/figure/{SVG}svg")
    assert picture is not None
    width, height = float(picture.get("width", "")), float(picture.get("height", ""))
    for each in picture.iter(f"{SVG}rect"):
        left, top = float(each.get("x", "")), float(each.get("y", ""))
        assert 0 <= left <= left + float(each.get("width", "")) <= width
        assert 0 <= top <= top + float(each.get("height", "")) <= height
    assert len(root.findall("./body/table")) == 2


@pytest.mark.slow
def test_the_page_in_a_browser(page: str, tmp_path: Path) -> None:
    """Headless Chromium lays it out: every bar is in the window, has a colour, and is hit by a pointer."""
    program = browser.find()
    if program is None:
        pytest.skip("no Chromium for this kind of machine; test_the_page_is_well_formed checks the page without one")
    (tmp_path / "look.html").write_text(page.replace("</body>", LOOK + "</body>"), encoding="utf-8")
    with browser.Browser(program, tmp_path / "profile") as chromium:
        answer = chromium.ask(tmp_path / "look.html", "document.getElementById('seen')?.textContent")
    seen: dict[str, Any] = json.loads(answer)
    assert seen["heading"] == "Group shop"
    assert seen["wide"] <= seen["window"]
    assert len(seen["bars"]) == page.count("<g class='span'>") > 10
    for bar in seen["bars"]:
        assert 0 <= bar["left"] < bar["right"] <= seen["window"], bar
        assert bar["bottom"] - bar["top"] > 10, bar
        assert bar["hit"] or bar["width"] < 5, bar  # a line of a rebalance may lie over a very narrow one
        assert bar["fill"].startswith("rgb"), bar
    rows: dict[str, list[tuple[float, float]]] = {}
    for bar in seen["bars"]:
        rows.setdefault(bar["title"].partition(":")[0], []).append((bar["left"], bar["right"]))
    assert len(rows) == 6
    for bars in rows.values():  # no partition has two owners at a time
        assert all(first[1] <= second[0] + 1 for first, second in itertools.pairwise(sorted(bars)))
