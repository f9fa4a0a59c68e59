"""Read from a plan which columns a DataFrame uses, as Spark does not tell a source in Python."""

from __future__ import annotations

import logging
from typing import Any, Iterator, NamedTuple

from managedconsumer.errors import ConfigurationError

log = logging.getLogger(__name__)

# How to find the table of a plan's relation.
_RELATIONS = {
    "DataSourceV2ScanRelation": lambda leaf: leaf.relation().table(),
    "DataSourceV2Relation": lambda leaf: leaf.table(),
    "StreamingRelationV2": lambda leaf: leaf.table(),
}
# The cheapest column, for a DataFrame that uses none: one has to be read.
_NONE = ("partition",)


class ColumnsUsed(NamedTuple):
    """The columns of one source of a DataFrame, and those that are used; in the order of the schema."""

    read: tuple[str, ...]
    used: tuple[str, ...]

    @property
    def option(self) -> str:
        """The value for the option ``columns``."""
        return ",".join(self.used or _NONE)

    @property
    def too_many(self) -> bool:
        """True if unused columns are read."""
        return len(self.used or _NONE) < len(self.read)

    def __str__(self) -> str:
        if not self.too_many:
            return f"all columns that are read are used: {', '.join(self.read)}"
        return f'{len(self.used)} of {len(self.read)} columns are used: .option("columns", "{self.option}") reads less'


def columns_used(frame: Any, source: str = "managedkafka") -> list[ColumnsUsed]:
    """Return the value for ``columns``: the columns of its Kafka sources that a DataFrame (batch or stream) uses.

    ``source``: the name of the data source, if you have given your subclass another one. The list has an entry for each
    read, which ``str()`` puts into words; those that read too much are told in the log (level INFO), too. No query is
    started. What ``foreachBatch`` does with the rows is not in the plan. Raises ConfigurationError for a DataFrame of
    Spark Connect, which does not show its plan.
    """
    inner = getattr(frame, "_jdf", None)
    if inner is None:
        raise ConfigurationError("columns_used needs a DataFrame of a classic session: Spark Connect shows no plan")
    # The optimizer removes unused columns. Spark itself optimizes the plan of a stream only when it starts.
    session = frame.sparkSession._jsparkSession  # the plan is not in the public API
    plan = session.sessionState().optimizer().execute(inner.queryExecution().analyzed())
    nodes = list(_nodes(plan))
    used = {each.exprId().id() for each in _items(plan.outputSet().toSeq())}
    for node, children in nodes:
        if not children:
            continue
        used.update(each.exprId().id() for each in _items(node.references().toSeq()))
        if len(children) > 1 and node.nodeName() != "Join":  # a union: column by column, without naming them
            used.update(each.exprId().id() for child in children for each in _items(child.output()))
    found = []
    for leaf, children in nodes:
        find = None if children else _RELATIONS.get(leaf.getClass().getSimpleName())
        if find is None or find(leaf).name() != source:
            continue
        columns = [(each.name(), each.exprId().id()) for each in _items(leaf.output())]
        read = tuple(name for name, _ in columns)
        found.append(ColumnsUsed(read, tuple(name for name, number in columns if number in used)))
    for each in found:
        if each.too_many:
            log.info("%s: %s", source, each)
    return found


def _nodes(plan: Any) -> Iterator[tuple[Any, list[Any]]]:
    children = list(_items(plan.children()))
    yield plan, children
    for child in children:
        yield from _nodes(child)


def _items(sequence: Any) -> Iterator[Any]:
    """The items of a Scala ``Seq``."""
    for number in range(sequence.size()):
        yield sequence.apply(number)
