"""Rewrite a pykafka program for this package, as far as its meaning stays the same. Pure; needs libcst.

Imports of names that exist here come from here, and named arguments without an effect go. All else stays, to the byte.
"""

from __future__ import annotations

import ast
from typing import Any

import libcst as cst
from libcst import helpers
from libcst import matchers as m

from managedconsumer.admin.pykafka_options import without_effect
from managedconsumer.admin.pykafka_source import MODULES, NAMES, called, concerns, home_of, produces, renamed

_HOME = "managedconsumer"
#: Their types do not say which kind of node is found.
_replace: Any = m.replace
_findall: Any = m.findall


def fixed(source: bytes) -> bytes:
    """The rewritten program; ``source`` itself where there is nothing to rewrite.

    A program that makes producers stays as it is, as its client must be pykafka's. Raises SyntaxError where ``source``
    is no Python 3.
    """
    tree = ast.parse(source)
    if not concerns(tree) or produces(tree):
        return source
    try:
        module = cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        raise SyntaxError(str(error)) from error
    names = renamed(tree)
    moved = _replace(module, m.SimpleStatementLine([m.ImportFrom()]), lambda line, _: _from_import(module, line))
    return bytes(_replace(_plain_import(moved), m.Call(), lambda call, _: _call(module, call, names)).bytes)


def _from_import(module: Any, line: Any) -> Any:
    """``from pykafka... import ...`` as one import for each module that has the names, pykafka's last."""
    (node,) = line.body
    source = (helpers.get_full_name_for_node(node.module) or "") if node.module and not node.relative else ""
    if source.split(".")[0] != "pykafka" or (isinstance(node.names, cst.ImportStar) and source != "pykafka.exceptions"):
        return line
    if isinstance(node.names, cst.ImportStar):
        return line.with_changes(body=[node.with_changes(module=cst.parse_expression(MODULES[source]))])
    found: dict[str, list[str]] = {}
    texts = [module.code_for_node(alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for alias in node.names]
    for alias, old in zip(node.names, texts, strict=True):
        statement, text = _import_of(source, alias.name.value, old, alias.asname is not None)
        found.setdefault(statement, []).append(text)
    left = f"from {source} import "
    if list(found) == [left]:
        return line
    if list(found.values()) == [texts]:
        home = home_of(source, node.names[0].name.value) or source
        return line.with_changes(body=[node.with_changes(module=cst.parse_expression(home))])
    if "#" in module.code_for_node(node):  # comments of a list that is made anew would be lost
        return line
    statements = sorted(found, key=lambda statement: (statement == left, statement))
    made: list[Any] = [cst.parse_statement(statement + ", ".join(found[statement])) for statement in statements]
    made[0] = made[0].with_changes(leading_lines=line.leading_lines)
    made[-1] = made[-1].with_changes(trailing_whitespace=line.trailing_whitespace)
    return cst.FlattenSentinel(made)


def _import_of(source: str, name: str, text: str, aliased: bool) -> tuple[str, str]:
    """The statement that imports ``name``, as ``text`` has it, and the text behind it."""
    module = MODULES.get(f"{source}.{name}") if source == "pykafka" else None
    if module == _HOME:
        return "import ", text.replace(name, _HOME, 1) if aliased else f"{_HOME} as {name}"
    if module is not None:
        here = module.rpartition(".")[2]
        return f"from {_HOME} import ", text.replace(name, here, 1) if aliased else f"{here} as {name}"
    return f"from {home_of(source, name) or source} import ", text


def _plain_import(module: Any) -> Any:
    """``module`` with ``import pykafka`` and its uses rewritten, if all that it uses of pykafka exists here."""
    unknown: list[str] = []

    def attribute(node: Any, _: object) -> Any:
        name = helpers.get_full_name_for_node(node) or ""
        parent, _, last = name.rpartition(".")
        if name in MODULES:
            return cst.parse_expression(MODULES[name])
        if parent == "pykafka" and last in NAMES:
            return cst.parse_expression(f"{_HOME}.{last}")
        if parent == _HOME and last not in (*NAMES, "errors"):
            unknown.append(name)
        return node

    made = _replace(module, m.Attribute(), attribute)
    home = f"{_HOME}.errors" if f"{_HOME}.errors." in made.code else _HOME  # the longer import binds the package, too
    whole = m.ImportAlias(name=m.Name("pykafka"), asname=None)
    made = _replace(made, whole, lambda alias, _: alias.with_changes(name=cst.parse_expression(home)))
    left = any(getattr(node, "id", "") == "pykafka" for node in ast.walk(ast.parse(made.bytes)))
    aliased = _findall(module, m.ImportAlias(name=m.OneOf(m.Name("pykafka"), m.Attribute(m.Name("pykafka")))))
    if left or unknown or any(each.asname for each in aliased) or "from pykafka" in made.code:
        return module
    return made


def _call(module: Any, node: Any, names: Any) -> Any:
    """The call without the arguments that have no effect."""
    call = ast.parse(f"({module.code_for_node(node)}\n)", mode="eval").body
    idle = without_effect(call, called(call, names)) if isinstance(call, ast.Call) else ()
    kept = [each for each in node.args if each.keyword is None or each.keyword.value not in idle]
    if not idle:
        return node
    if kept:  # what is behind the last argument stays: a comma or none, a line break
        last = node.args[-1]
        kept[-1] = kept[-1].with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    return node.with_changes(args=kept)
