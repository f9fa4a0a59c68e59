"""What a mutant is."""

from __future__ import annotations

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
