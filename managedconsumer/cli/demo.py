"""``managedconsumer demo``: the example in ``examples/demo``; ``_demo`` is a link to it, and a folder in the wheel."""

from __future__ import annotations

from managedconsumer.cli._demo.command import command as command
