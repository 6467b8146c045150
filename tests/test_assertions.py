"""Every assertion of the tests can fail: kinds of them that cannot, or hardly, are found by their form."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
#: what may well be empty: a loop over it asserts nothing then
SEARCHES = {"glob", "rglob", "iterdir", "findall", "finditer"}


def faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and fault."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield from of_assertion(node)
        elif isinstance(node, ast.Call):
            yield from of_call(node)
        elif isinstance(node, ast.For) and _searches(node.iter) and any(isinstance(inner, ast.Assert) for inner in ast.walk(node)):
            yield node.lineno, "asserts for what a search finds, which may be nothing: assert first that it finds something"


def of_assertion(node: ast.Assert) -> Iterator[tuple[int, str]]:
    test = node.test
    if isinstance(test, ast.Constant | ast.Tuple | ast.JoinedStr | ast.Lambda | ast.GeneratorExp):
        yield node.lineno, "is always true"
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        if any(isinstance(value, ast.BoolOp) for value in test.values):
            yield node.lineno, "'and' beside 'or': write two assertions"
        if all(map(_looks_into, test.values)) and len({ast.dump(looked) for value in test.values if (looked := _looked_at(value))}) == 1:
            yield node.lineno, "either of two facts about one thing: say which"
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "all" and test.args:
        argument = test.args[0]
        if isinstance(argument, ast.GeneratorExp) and _searches(argument.generators[0].iter):
            yield node.lineno, "holds for all that a search finds, which may be nothing"


def of_call(node: ast.Call) -> Iterator[tuple[int, str]]:
    """pytest.raises(Exception) is content with any mistake of the test itself."""
    called = node.func
    if isinstance(called, ast.Attribute) and called.attr == "raises" and node.args and not node.keywords:
        kinds = node.args[0].elts if isinstance(node.args[0], ast.Tuple) else [node.args[0]]
        if any(isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException") for kind in kinds):
            yield node.lineno, "any exception would do: name its kind, or match= its words"


def _searches(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("sorted", "list", "set", "enumerate") and node.args:
        return _searches(node.args[0])
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES


def _looks_into(node: ast.expr) -> bool:
    return _looked_at(node) is not None


def _looked_at(node: ast.expr) -> ast.expr | None:
    """The text or the container in which `in`, or a search, looks for something."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.In):
        return node.comparators[0]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("search", "match") and len(node.args) == 2:
        return node.args[1]
    return None


def test_no_assertion_is_vacuous() -> None:
    lines = []
    for path in sorted(TESTS.rglob("*.py")):
        lines += [f"{path.relative_to(TESTS)}:{line}: {fault}" for line, fault in faults(ast.parse(path.read_text(encoding="utf-8")))]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        "assert (x, 'message')",
        "assert 'words'",
        "assert f'{x}'",
        "assert a and b or c",
        "assert 'one' in said or 'two' in said",
        "assert re.search('one', said) or 'two' in said",
        "assert all(x for x in where.glob('*'))",
        "for x in sorted(where.rglob('*')):\n    assert x",
        "with pytest.raises(Exception):\n    f()",
        "with pytest.raises((ValueError, BaseException)):\n    f()",
    ],
)
def test_each_kind_is_reported(text: str) -> None:
    assert len(list(faults(ast.parse(text)))) == 1


@pytest.mark.parametrize(
    "text", ["assert not rank or said", "assert a == b", "with pytest.raises(Exception, match='words'):\n    f()", "for x in y:\n    assert x"]
)
def test_others_are_not(text: str) -> None:
    assert list(faults(ast.parse(text))) == []
