"""A timeline as a picture (SVG) and as a page (HTML), each in one file. Pure."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Callable, Iterator

from managedconsumer.observe.timeline import Gap, Round, Span, Timeline
from managedconsumer.shown import html

_LEFT, _TOP, _ROW, _BAR, _WIDTH = 150, 40, 26, 18, 1000
_TICKS = 6
#: Maps a time (seconds since 1970) to the distance from the left (pixels).
Place = Callable[[float], float]
_FONT = "font-family='system-ui, sans-serif' font-size='12'"

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1200px; padding: 0 1em; color: #222; }}
table {{ border-collapse: collapse; margin: 1em 0; }}
th, td {{ text-align: left; padding: .2em 1em .2em 0; border-bottom: 1px solid #ddd; vertical-align: top; }}
td.number {{ text-align: right; white-space: nowrap; }}
svg {{ max-width: 100%; height: auto; }}
figure {{ margin: 0; overflow-x: auto; }}
</style></head><body>
<h1>{title}</h1>
<p>{summary}</p>
<figure>{picture}</figure>
<h2>Rebalances</h2>
<table><thead><tr><th>began</th><th>took</th><th>generation</th><th>why</th></tr></thead><tbody>
{rounds}
</tbody></table>
<h2>Nobody read</h2>
<table><thead><tr><th>partition</th><th>times</th><th>longest</th><th>in all</th></tr></thead><tbody>
{gaps}
</tbody></table>
</body></html>
"""


def clock(moment: float) -> str:
    """The time of day, to the millisecond, UTC."""
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%H:%M:%S.%f")[:-3]


def duration(seconds: float) -> str:
    """A duration as text: ``12 ms``, ``3.4 s``, ``2 min 5 s``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def causes(each: Round) -> str:
    """The reasons of a rebalance as text."""
    return "; ".join(each.causes) or "a member that was not watched came or went"


def took(each: Round) -> str:
    """The length of a rebalance as text."""
    return "unfinished" if each.end is None else duration(each.end - each.start)


def svg(timeline: Timeline) -> str:
    """A row for each partition, a bar for each of its owners, a line for each rebalance; all have tooltips."""
    partitions = sorted({span.partition for span in timeline.spans})
    rows = {tp: _TOP + _ROW * place for place, tp in enumerate(partitions)}
    bottom = _TOP + _ROW * len(partitions)
    legend = bottom + 34
    height = legend + 20 * ((len(timeline.members) + 3) // 4) + 10
    width = _LEFT + _WIDTH + 60
    colours = {member: _colour(place) for place, member in enumerate(timeline.members)}
    length = max(timeline.end - timeline.start, 0.001)

    def x(moment: float) -> float:
        return round(_LEFT + _WIDTH * (moment - timeline.start) / length, 2)

    size = f"width='{width}' height='{height}' viewBox='0 0 {width} {height}'"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img' {_FONT}>",
        f"<title>{html(f'Group {timeline.group}')}</title>",
    ]
    for place in range(_TICKS + 1):
        moment = timeline.start + length * place / _TICKS
        parts.append(f"<line x1='{x(moment)}' x2='{x(moment)}' y1='{_TOP - 6}' y2='{bottom}' stroke='#eee'/>")
        parts.append(f"<text x='{x(moment)}' y='{bottom + 16}' text-anchor='middle'>{clock(moment)}</text>")
    for tp, y in rows.items():
        parts.append(f"<text x='{_LEFT - 10}' y='{y + 13}' text-anchor='end'>{html(tp.topic)}-{tp.partition}</text>")
    parts += [_bar(span, rows[span.partition], x, colours[span.member], timeline.end) for span in timeline.spans]
    parts += [_hole(gap, rows[gap.partition], x) for gap in timeline.gaps]
    for each in timeline.rounds:
        said = html(f"{clock(each.start)}: generation {each.generation}, {took(each)}: {causes(each)}")
        line = f"<line x1='{x(each.start)}' x2='{x(each.start)}' y1='{_TOP - 14}' y2='{bottom}' stroke='#444' "
        parts.append(f"<g class='round'>{line}stroke-dasharray='3 3'/><title>{said}</title></g>")
    for place, (member, colour) in enumerate(colours.items()):
        left, y = _LEFT + 260 * (place % 4), legend + 20 * (place // 4)
        parts.append(f"<rect x='{left}' y='{y}' width='12' height='12' fill='{colour}'/>")
        parts.append(f"<text x='{left + 18}' y='{y + 10}'>{html(short(member))}</text>")
    return "\n".join([*parts, "</svg>"])


def _bar(span: Span, y: int, x: Place, colour: str, last: float) -> str:
    left, right = x(span.start), x(last if span.end is None else span.end)
    until = "now" if span.end is None else clock(span.end)
    said = html(f"{span.partition.topic}-{span.partition.partition}: {span.member}, {clock(span.start)} to {until}")
    shape = f"<rect x='{left}' y='{y}' width='{max(right - left, 1):.2f}' height='{_BAR}' fill='{colour}'/>"
    return f"<g class='span'>{shape}<title>{said}</title></g>"


def _hole(gap: Gap, y: int, x: Place) -> str:
    left, right = x(gap.start), x(gap.end)
    said = html(f"{gap.partition.topic}-{gap.partition.partition}: nobody for {duration(gap.seconds)}")
    shape = f"<rect x='{left}' y='{y + _BAR - 3}' width='{max(right - left, 1):.2f}' height='3' fill='#c00'/>"
    return f"<g class='gap'>{shape}<title>{said}</title></g>"


def _colour(place: int) -> str:
    """A colour; neighbours differ in hue and in lightness, so they also differ in greyscale."""
    return f"hsl({(210 + place * 137) % 360} 55% {(45, 62, 75)[place % 3]}%)"


def short(member: str) -> str:
    """A member's id without most of its random part: the last 36 characters are a UUID as Kafka makes them."""
    return member if len(member) <= 40 else f"{member[:-28]}..."


def page(timeline: Timeline) -> str:
    """A page: the picture, the rebalances with their causes, and each partition's gaps."""
    longest = max((gap.seconds for gap in timeline.gaps), default=0.0)
    summary = (
        f"{clock(timeline.start)} to {clock(timeline.end)} UTC ({duration(timeline.end - timeline.start)}): "
        f"{len(timeline.members)} members, {len(timeline.rounds)} rebalances; "
        f"the longest time in which nobody read a partition was {duration(longest)}."
    )
    return _PAGE.format(
        title=html(f"Group {timeline.group}"),
        summary=html(summary),
        picture=svg(timeline),
        rounds="\n".join(_round_rows(timeline)),
        gaps="\n".join(_gap_rows(timeline)),
    )


def _round_rows(timeline: Timeline) -> Iterator[str]:
    for each in timeline.rounds:
        yield (
            f"<tr><td class='number'>{clock(each.start)}</td><td class='number'>{took(each)}</td>"
            f"<td class='number'>{html(str(each.generation))}</td><td>{html(causes(each))}</td></tr>"
        )


def _gap_rows(timeline: Timeline) -> Iterator[str]:
    for tp, mine in timeline.unread().items():
        numbers = (len(mine), duration(max(mine, default=0.0)), duration(sum(mine)))
        cells = "".join(f"<td class='number'>{each}</td>" for each in numbers)
        yield f"<tr><td>{html(tp.topic)}-{tp.partition}</td>{cells}</tr>"
