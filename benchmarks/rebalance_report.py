"""Tables of what rebalances cost, and how ours compare in each row with the better of the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import metadata

import results
from groups import Outcome, median

#: Setting, protocol, event, client.
Key = tuple[str, str, str, str]
Found = Mapping[Key, Sequence[Outcome]]

OURS = "managedconsumer"
_TITLES = {"join": "A member joins", "leave": "A member leaves", "kill": "A member is killed"}
_NAMES = {"range": "eager (range)", "cooperative-sticky": "cooperative-sticky", "consumer": "KIP-848"}
_NOTES = (
    "Milliseconds; median and longest. *noise* is the longest wait in the calm before the events (median), and for\n"
    "*any* besides a heartbeat interval divided by the number of events: their phases are even, but not the same.\n"
    "kafka-python does not speak KIP-848."
)
_PACKAGES = {OURS: OURS, "confluent": "confluent-kafka", "kafka-python": "kafka-python"}


def versions(clients: Sequence[str]) -> str:
    """What was compared."""
    return ", ".join(f"{_PACKAGES[client]} {metadata.version(_PACKAGES[client])}" for client in clients)


def _ms(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}"


def event_table(found: Found, event: str) -> str:
    """One event under all settings and protocols: every client's row."""
    rows = []
    for (setting, protocol, what, client), seen in found.items():
        if what != event:
            continue
        columns = [[getattr(outcome, name) for outcome in seen] for name in ("kept", "any", "quiet")]
        row = [f"{_NAMES[protocol]}, {setting}: {client}"]
        for column in columns:
            row += [_ms(median(column)), _ms(max((v for v in column if not math.isnan(v)), default=math.nan))]
        rows.append([*row, f"{median(o.twice for o in seen):.0f}", str(max(o.lost for o in seen)), str(len(seen))])
    header = ["protocol, timeouts: client", "kept", "max", "any", "max", "quiet", "max", "twice", "lost", "times"]
    title = _TITLES[event]
    return f"{title}\n{'~' * len(title)}\n\n{results.simple_table(header, rows)}"


def _noise(found: Found, row: tuple[str, str, str], clients: Sequence[str], name: str, beat_ms: float) -> float:
    """How far two medians may be apart and mean nothing: what the calm shows; for *any* the heartbeats' phase too."""
    quiet = max(median(outcome.quiet for outcome in found[(*row, client)]) for client in clients)
    times = max(len(found[(*row, client)]) for client in clients)
    return quiet + (beat_ms / times if name == "any" else 0.0)


def _compared(found: Found, beats: Mapping[tuple[str, str], float]) -> list[list[str]]:
    """For each row our median beside the better of the other clients' medians."""
    rows = []
    for setting, protocol, event in dict.fromkeys(key[:3] for key in found):
        row = (setting, protocol, event)
        clients = [client for *where, client in found if tuple(where) == row]
        others = [client for client in clients if client != OURS]
        if OURS not in clients or not others:
            continue
        for name in ("kept", "any"):
            medians = {client: median(getattr(o, name) for o in found[(*row, client)]) for client in clients}
            known = [client for client in others if not math.isnan(medians[client])]
            if not known or math.isnan(medians[OURS]):
                continue
            best = min(known, key=lambda client: medians[client])
            noise = _noise(found, row, [OURS, best], name, beats[setting, protocol])
            more = medians[OURS] - medians[best]
            verdict = "yes" if more <= 0 else "within noise" if more <= noise else "NO"
            what = f"{event}, {name}: {_NAMES[protocol]}, {setting}"
            rows.append([what, _ms(medians[OURS]), _ms(medians[best]), best, _ms(noise), verdict])
    return rows


def summary(found: Found, beats: Mapping[tuple[str, str], float]) -> str:
    """How many rows are no worse than the better of the other clients', and which are."""
    rows = _compared(found, beats)
    no_worse, noise = (sum(row[-1] == word for row in rows) for word in ("yes", "within noise"))
    worse = [row[0] for row in rows if row[-1] == "NO"]
    return (
        f"In {no_worse} of {len(rows)} rows ours is no worse than the better of the others, and in {noise} it is "
        f"worse by less than the noise. Worse by more: {'; '.join(worse) or 'none'}."
    )


def verdicts(found: Found, beats: Mapping[tuple[str, str], float]) -> str:
    """The comparison as a table."""
    header = ["row", "ours", "better other", "which", "noise", "no worse"]
    return results.simple_table(header, _compared(found, beats))


def report(found: Found, beats: Mapping[tuple[str, str], float]) -> str:
    """All rows of all events, and how ours compare."""
    tables = [event_table(found, event) for event in _TITLES if any(key[2] == event for key in found)]
    compared = f"Ours beside the better of the others, medians\n{'~' * 45}\n\n{verdicts(found, beats)}"
    return "\n\n".join([*tables, compared, _NOTES])
