"""Fields of log lines, beside their text: ``group``, ``member``, ``generation``, ``topic``, ``partition``.

They are attributes of the ``LogRecord``, so a formatter for JSON finds them; a line has those that it is about. Pure.
"""

from __future__ import annotations

from typing import Any, Mapping


def fields(
    group: str | None = None,
    tp: tuple[str, int] | None = None,
    member: str | None = None,
    generation: int | None = None,
) -> Mapping[str, Any]:
    """For a logger's ``extra=``: what is known of these. ``tp``: topic and partition."""
    topic, partition = tp or (None, None)
    values = {"group": group, "member": member, "generation": generation, "topic": topic, "partition": partition}
    return {name: value for name, value in values.items() if value is not None}
