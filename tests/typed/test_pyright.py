"""pyright, and the editors that use it, see the same types as mypy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.mark.slow
def test_pyright_finds_what_is_wrong_in_users_programs_and_nothing_else(tmp_path: Path) -> None:
    settings = {
        "include": [str(HERE / name) for name in ("program.py", "results.py")],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "--project", str(tmp_path), "--pythonpath", sys.executable]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.startswith("0 errors"), found.stdout
