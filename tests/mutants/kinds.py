"""What a mutant is, and how the table writes it down."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One change of one file, and who is expected to notice it."""

    name: str
    file: str
    old: str
    new: str
    #: Test files (or ``file::test``) of which one fails.
    tests: tuple[str, ...] = ()
    #: The last of the simulated schedules, from the first on, of which one violates something; 0: no schedules are run.
    seeds: int = 0
    #: Which implementation decodes; "" is the accelerator where it is built.
    twin: str = ""
    #: Part of the run in CI.
    ci: bool = False

    @property
    def compiled(self) -> bool:
        """True when the copy has to be built again."""
        return self.file.endswith((".pyx", ".pxi", ".pxd", ".h"))


def read(table: str) -> list[Mutant]:
    """The mutants of a table; ``tests/mutants/table.py`` says how it is written."""
    found: list[Mutant] = []
    for of_a_file in re.split(r"^@ ", table, flags=re.MULTILINE)[1:]:
        head, *described = re.split(r"^# ", of_a_file, flags=re.MULTILINE)
        file, *words = head.split()
        options = dict(word.split("=") for word in words if "=" in word)
        tests = tuple(f"tests/{word}" for word in words if "=" not in word and word != "ci")
        for text in described:
            name, *lines = text.rstrip("\n").split("\n")
            old, new = ("\n".join(line[1:] for line in lines if line[0] == mark) for mark in "-+")
            seeds, twin = int(options.get("seeds", 0)), options.get("twin", "")
            found.append(Mutant(name, f"managedconsumer/{file}", old, new, tests, seeds, twin, "ci" in words))
    return found
