"""What others have chosen: on its way to a terminal, a page and Prometheus, and back from a commit's metadata."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import math
import random
import time
import tracemalloc
import zlib
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET

from managedconsumer import Message
from managedconsumer.cli import _messages, _show
from managedconsumer.coordinator.states import MemberState
from managedconsumer.observe import drawing
from managedconsumer.observe.flight import lines_of
from managedconsumer.observe.metrics import Metrics
from managedconsumer.observe.recorder import Recorder
from managedconsumer.processing import offset_map
from tests.fuzz.kit import Case, mutate
from tests.test_shown import orders

_PIECES = (
    *("\x1b]52;c;ZXZpbA==\x07", "\x1b[2J", "\x1b", "\x9b2J", "\r", "\n", "\t", "\0", "\x7f", "\x85", "\u2028"),
    *("\u202e", "\udfff", "\udcff", "\ufeff", "\uffff", "\U0001f600", "é", "東京", "e\u0301", "\u200b", "\\"),
    *("\\x1b", "%s", "{0}"),
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</svg>", "]]>", "<!--", "&lt;", "&", "'", '"', ">"),
    *("} 1\nfake 2\n#", '"} 1', ",", "=", "[red]", "orders", "-", "0", "a" * 300),
)


def text(rng: random.Random, most: int = 6) -> str:
    """What somebody may call his group."""
    return "".join(rng.choice(_PIECES) for _ in range(rng.randint(0, most)))


def data(rng: random.Random) -> bytes | None:
    """What a producer may write."""
    if rng.random() < 0.1:
        return None
    made = text(rng).encode("utf-8", "surrogatepass")
    return mutate(made, rng) if rng.random() < 0.3 else made


def _number(rng: random.Random) -> int:
    return rng.choice((0, -1, 1, 1_700_000_000_000, 2**60, -(2**62), 2**63 - 1, rng.randrange(2**43)))


class Terminal:
    """Messages and names, as the commands print them."""

    name = "terminal"

    def case(self, rng: random.Random) -> Case:
        letters = [
            rng.choice(("%t", "%p", "%o", "%k", "%s", "%S", "%T", "%h", "%%", "\\n", "\\t", " ")) for _ in range(6)
        ]
        headers = [[text(rng, 3), data(rng)] for _ in range(rng.randint(0, 2))]
        message = {"key": data(rng), "value": data(rng), "headers": headers, "topic": text(rng), "time": _number(rng)}
        return {**message, "format": "".join(letters), "names": [text(rng) for _ in range(4)]}

    def check(self, case: Case) -> None:
        """Nothing that a terminal obeys; a message of the text format is one line; JSON says what was written."""
        headers = [(name, value) for name, value in case["headers"]]
        message = Message(case["value"], case["key"], topic=case["topic"], headers=headers, timestamp=case["time"])
        line, dumped = _messages.line(message), _messages.as_json(message)
        assert not orders(line, "\t")
        assert line.count("\t") == 4
        assert not orders(dumped)
        assert json.loads(dumped)["topic"] == case["topic"]
        assert not orders(_messages.kcat(case["format"])(message), "\n\t")
        assert not orders(repr(message))
        assert len(repr(message)) < 2500
        _messages.kcat(case["format"], raw=True)(message).encode("utf-8", "surrogatepass")
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            _show.table(["A", "B"], [case["names"][:2], case["names"][2:]])
            _show.say(case["names"][0])
            _show.print_json({name: [name] for name in case["names"]})
            _show.tell(case["names"][1])
        assert not orders(out.getvalue() + err.getvalue(), "\n\t")
        (out.getvalue() + err.getvalue()).encode()


_TAGS = set("html head meta title style body h1 h2 p figure table thead tbody tr th td svg line text g rect".split())
_ATTRIBUTES = set("lang charset class xmlns width height viewbox role font-family font-size x y x1 x2 y1 y2".split())
_ATTRIBUTES |= {"stroke", "stroke-dasharray", "text-anchor", "fill"}


class _Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.comments: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


class Pages:
    """History files, as a page and as a picture."""

    name = "pages"

    def case(self, rng: random.Random) -> Case:
        members, topics = [text(rng) for _ in range(3)], [text(rng) for _ in range(2)]
        states = [state.value for state in MemberState]
        lines = []
        for number in range(rng.randint(1, 20)):
            kind = rng.choice(("state", "state", "handed out", "suspended", "revoked", "lost", "retry", text(rng)))
            event: dict[str, Any] = {"time": float(number), "moment": 0.0, "kind": kind, "group": "g"}
            event |= {"member": rng.choice(members), "generation": rng.randint(-1, 3)}
            event |= {"old": rng.choice(states), "new": rng.choice(states), "reason": text(rng)}
            event["partitions"] = [f"{rng.choice(topics)}-{rng.randint(0, 2)}" for _ in range(rng.randint(0, 2))]
            if rng.random() < 0.02:
                event[rng.choice(list(event))] = rng.choice(
                    (None, text(rng), -1, 1e300, math.inf, 5, [], [1], {}, True)
                )
            lines.append(json.dumps(event))
        ring = None
        if rng.random() < 0.5:
            ring = mutate("\n".join(lines).encode(), rng)
            if rng.random() < 0.7:
                ring = b"managedconsumer history 1 %012d\n" % rng.randrange(len(ring) + 10) + ring
        return {"lines": lines, "file": ring}

    def check(self, case: Case) -> None:
        """A ValueError, or a page with the elements and attributes of a page, which is well-formed."""
        recorder = Recorder()
        try:
            recorder.read(case["lines"] if case["file"] is None else lines_of(case["file"]))
            found = recorder.timeline(None if case["file"] is None else "g")
        except ValueError as error:
            assert len(str(error)) < 10_000
            return
        for made in (drawing.page(found), drawing.svg(found)):
            seen = _Seen()
            seen.feed(made)
            seen.close()
            assert seen.tags <= _TAGS, seen.tags - _TAGS
            assert seen.attributes <= _ATTRIBUTES, seen.attributes - _ATTRIBUTES
            assert not seen.comments
            assert not orders(made, "\n")
        ET.fromstring(drawing.svg(found))


class Scraped:
    """Names as labels, in the text that Prometheus reads."""

    name = "scraped"

    def case(self, rng: random.Random) -> Case:
        names = [f"managedconsumer_{n}" for n in range(rng.randint(1, 3))]
        keys = rng.sample(["group", "topic", "client.id", "1st", "a-b", "größe"], rng.randint(0, 3))
        value = rng.choice((0.0, 1.0, -1.5, 1e300, 1e-320, math.inf, -math.inf, math.nan, float(rng.randrange(2**53))))
        rows = [[name, text(rng), [[key, text(rng)] for key in keys], value] for name in names]
        return {"rows": rows, "timer": [text(rng), text(rng)]}

    def check(self, case: Case) -> None:
        """Another parser finds each sample once, under its name, with its labels as they are, and nothing else."""
        from prometheus_client.parser import text_string_to_metric_families

        metrics, expected = Metrics(), {}
        for name, about, tags, value in case["rows"]:
            metrics.gauge(name, about, dict(tags)).set(value)
            labels = {_label(key): _shown(label) for key, label in tags}
            expected[name, tuple(sorted(labels.items()))] = value
        group, about = case["timer"]
        metrics.timer("managedconsumer_t_seconds", about, {"group": group}).observe(2.0)
        for suffix, number in (("_count", 1.0), ("_sum", 2.0), ("_max", 2.0)):
            expected[f"managedconsumer_t_seconds{suffix}", (("group", _shown(group)),)] = number
        made = metrics.prometheus()
        made.encode()
        found = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(made)
            for sample in family.samples
        }
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert found[key] == value or (math.isnan(found[key]) and math.isnan(value))


def _label(key: str) -> str:
    made = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in key)
    return f"_{made}" if made[0].isdigit() else made


def _shown(value: str) -> str:
    return "".join("\ufffd" if 0xD800 <= ord(letter) < 0xE000 else letter for letter in value)


_MOST_SECONDS, _MOST_BYTES = 3.0, 48 << 20


class Maps:
    """Metadata of commits: whoever may commit for a group writes what he likes.

    What a map looks like is the module's own matter: a text that it has made is changed, as a text and below its base
    85 and its deflate.
    """

    name = "maps"

    def case(self, rng: random.Random) -> Case:
        base_, length = rng.choice((0, 7, 2**40, 2**62)), rng.choice((1, 9, 500, 9000))
        unfinished = tuple(base_ + n for n in range(length) if rng.random() < rng.choice((0.01, 0.5)))
        known = offset_map.OffsetMap(
            unfinished, base_ + length, rng.choice((-1, 0, 300)), rng.choice((b"", b"12345678"))
        )
        made = offset_map.encode(known, base_)
        if made and rng.random() < 0.8:
            made = self._changed(made, rng)
        metadata = offset_map.with_map('{"consumer_id": "x"}', made)
        if rng.random() < 0.3:
            metadata = metadata.replace('"', rng.choice(('"', "[" * 4000, '{"a":' * 3000, "\\", "9" * 5000)), 3)
        return {"text": made, "base": base_, "metadata": metadata}

    @staticmethod
    def _changed(made: str, rng: random.Random) -> str:
        if rng.random() < 0.3:
            return mutate(made.encode(), rng).decode("latin-1")
        kind, deflated = made[:2], made[1].isupper()
        try:
            raw = base64.b85decode(made[2:])
        except ValueError:  # it begins in another way by now
            return mutate(made.encode(), rng).decode("latin-1")
        with contextlib.suppress(zlib.error):
            raw = zlib.decompress(raw) if deflated else raw
        raw = mutate(raw, rng)
        if deflated or rng.random() < 0.3:
            if rng.random() < 0.05:
                raw += rng.choice((b"\0", b"\xff", b"\x01\0")) * (1 << rng.randint(10, 21))
            kind, raw = made[0] + made[1].upper(), zlib.compress(raw)
        return kind + base64.b85encode(raw).decode()

    def check(self, case: Case) -> None:
        """No map, or one in order and within its bounds; soon, and in little memory."""
        began = time.process_time()
        offset_map.map_in(case["metadata"])
        found = offset_map.decode(case["text"], case["base"])
        spent = time.process_time() - began
        tracemalloc.start()  # which makes everything ten times slower
        try:
            offset_map.decode(case["text"], case["base"])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= _MOST_BYTES, f"{peak} bytes for {len(case['text'])}"
        assert spent <= _MOST_SECONDS, f"{spent} s for {len(case['text'])}"
        if found is not None:
            assert list(found.unfinished) == sorted(set(found.unfinished))
            assert all(case["base"] <= offset < found.top for offset in (*found.unfinished[:1], *found.unfinished[-1:]))
            assert not any(found.finished(offset) for offset in found.unfinished[:100])
