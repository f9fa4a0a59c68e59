"""What every fuzz target shares: mutations, cases as JSON, and the loop that looks for a case that fails.

A target makes cases from a random source and checks one case. A case is a dict of plain values and bytes, so that it
can be kept in ``corpus/`` and checked again in every later run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

CORPUS = Path(__file__).parent / "corpus"
# What the attack on a length or a count looks like, in Kafka's encodings of numbers.
ABSURD = (
    *(b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff" * 12, b"\x80" * 12, b"\x00" * 8),
    *(b"\x7f" + b"\xff" * 7, b"\x80" + b"\x00" * 7, b"\xff\xff", b"\x01", b"\xff" * 9 + b"\x01"),
)
Case = dict[str, Any]


class Target(Protocol):
    """One kind of input. ``check`` raises when the code under test breaks its promise for the case."""

    name: str

    def case(self, rng: random.Random) -> Case: ...

    def check(self, case: Case) -> None: ...


def mutate(data: bytes, rng: random.Random, most: int = 5) -> bytes:
    """``data`` with one to ``most`` changes: bytes and bits flipped, inserted, removed, repeated, or made absurd."""
    out = bytearray(data)
    for _ in range(rng.randint(1, most)):
        at, kind = rng.randrange(len(out) + 1), rng.randrange(7)
        if kind == 0 and at < len(out):
            out[at] = rng.randrange(256)
        elif kind == 1 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            out[at:at] = rng.randbytes(rng.randint(1, 6))
        elif kind == 3:
            del out[at : at + rng.randint(1, 9)]
        elif kind == 4:
            out[at:at] = out[at : at + rng.randint(1, 40)]
        elif kind == 5:
            del out[at:]
        else:
            absurd = rng.choice(ABSURD)
            out[at : at + len(absurd)] = absurd
    return bytes(out)


def to_json(case: Case) -> str:
    """A case as text; bytes become ``{"base64": ...}``."""
    return json.dumps(case, default=lambda value: {"base64": base64.b64encode(value).decode()}, indent=1)


def from_json(text: str) -> Case:
    """The case that :func:`to_json` wrote."""
    case: Case = json.loads(
        text, object_hook=lambda made: base64.b64decode(made["base64"]) if "base64" in made else made
    )
    return case


def corpus(target: Target) -> Iterator[tuple[str, Case]]:
    """(name, case) of each case that is kept for ``target``."""
    for path in sorted((CORPUS / target.name).glob("*.json")):
        yield path.stem, from_json(path.read_text(encoding="utf-8"))


@dataclass
class Found:
    """A case that fails, and where it was written to."""

    target: str
    error: BaseException
    path: Path


@dataclass
class Run:
    """What a run did: cases checked, CPU seconds spent, cases that fail."""

    cases: int
    cpu: float
    found: list[Found]


def keep(target: Target, case: Case, folder: Path) -> Path:
    """Write ``case`` below ``folder``, under a name that its content decides."""
    text = to_json(case)
    path = folder / target.name / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def fuzz(target: Target, seconds: float, seed: int, folder: Path, most: int = 5) -> Run:
    """Check new cases of ``target`` for ``seconds`` of CPU time; stop early after ``most`` failing ones.

    The same seed makes the same cases in the same order. A failing case is written below ``folder`` (keep it in
    ``corpus/`` once it is understood).
    """
    begin, run = time.process_time(), Run(0, 0.0, [])
    while time.process_time() - begin < seconds and len(run.found) < most:
        rng = random.Random(f"{target.name} {seed} {run.cases}")
        case = target.case(rng)
        run.cases += 1
        try:
            target.check(from_json(to_json(case)) if run.cases % 50 == 1 else case)
        except Exception as error:  # noqa: BLE001 - whatever it raises is what we look for
            run.found.append(Found(target.name, error, keep(target, case, folder)))
    run.cpu = time.process_time() - begin
    return run
