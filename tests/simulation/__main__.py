"""``python -m tests.simulation``: see ``simulate.main``."""

from __future__ import annotations

from tests.simulation.simulate import main

if __name__ == "__main__":
    raise SystemExit(main())
