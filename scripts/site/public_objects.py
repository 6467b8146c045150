"""The public names as griffe objects: signatures from tests/public/names.txt, docstrings from the imported package.

jobflow imports its names at their first use, and some functions are made from tables. A static analysis of the sources misses half of them, so
mkdocstrings renders these objects instead.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import griffe
from public_names import Name, is_member, module_of, names

import jobflow

#: the members of a class with more of them are a table
LONGEST = 100
#: kinds of parameters in the order of ast.arguments
KIND = griffe.ParameterKind
#: a default that the record describes: a member of an enumeration, an object, or <a new one>
DESCRIBED = re.compile(r"=(?:<([\w.]+): '\w+'>|<a new one>|a [\w.]+)(?=[,)])")


@functools.cache
def value_of(path: str) -> Any:
    """Return the object of a public name."""
    if path.startswith("<") or "(" in path or "[" in path:
        return None
    value: Any = jobflow
    parts = path.split(".")
    for end, word in enumerate(parts[1:], 2):
        if not inspect.ismodule(value):
            value = getattr(value if inspect.isclass(value) else type(value), word, None)
            continue
        if not hasattr(value, word):
            importlib.import_module(".".join(parts[:end]))
        value = getattr(value, word)
    return value


def of_tensors(name: Name) -> Name | None:
    """Return the function of tensors that shares its name with a job function, or None."""
    shared = name.parent == "jobflow" and module_of(name.path) == "jobflow.legacy.shared_names"
    return names().get(f"jobflow.functional.{name.word}") if shared else None


def docstring(name: Name) -> str:
    """Return the docstring of a public object, without those that Python and base classes provide."""
    own, tensors = _docstring(name), of_tensors(name)
    if tensors is None:
        return own
    text, heading, examples = _docstring(tensors).partition("\n\nExamples:\n")
    return f"{text}\n\nIn the body of a job: `{call(name)}`. {own}{heading}{examples}"


def _docstring(name: Name) -> str:
    value = value_of(name.path)
    if not (inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value) or isinstance(value, property)):
        return ""
    text = getattr(value, "__doc__", None)
    if is_member(name) and inspect.isroutine(value) and text in _provided(name.word):
        return ""
    return inspect.cleandoc(text or "")


@functools.cache
def _provided(word: str) -> frozenset[str | None]:
    return frozenset(getattr(getattr(kind, word, None), "__doc__", None) for kind in (object, type, dict, list, tuple))


def parameters(signature: str | None) -> griffe.Parameters:
    """Return the parameters of a signature of the record; none for `(...)`."""
    if signature == "(...)":
        return griffe.Parameters()
    text = DESCRIBED.sub(lambda match: f"={match[1] or '...'}", signature or "()")
    arguments = ast.parse(f"def f{text}: pass").body[0].args  # type: ignore[attr-defined]
    return griffe.Parameters(*_parameters(arguments))


def _parameters(arguments: ast.arguments) -> Iterator[griffe.Parameter]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for number, (argument, default) in enumerate(zip(positional, defaults, strict=True)):
        kind = KIND.positional_only if number < len(arguments.posonlyargs) else KIND.positional_or_keyword
        yield griffe.Parameter(argument.arg, kind=kind, default=ast.unparse(default) if default else None)
    if arguments.vararg:
        yield griffe.Parameter(arguments.vararg.arg, kind=KIND.var_positional, default="()")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield griffe.Parameter(argument.arg, kind=KIND.keyword_only, default=ast.unparse(default) if default else None)
    if arguments.kwarg:
        yield griffe.Parameter(arguments.kwarg.arg, kind=KIND.var_keyword, default="{}")


def documented(name: Name) -> bool:
    """Return True for a name with an entry of its own: a class, or a function with a docstring."""
    return not name.alias_of and (name.is_class or bool(docstring(name)))


def members(name: Name) -> list[Name]:
    return _members().get(name.path, [])


@functools.cache
def _members() -> dict[str, list[Name]]:
    result: dict[str, list[Name]] = {}
    for name in names().values():
        result.setdefault(name.parent, []).append(name)
    return result


#: what stays as it is in prose: lines of code, and code between backticks
CODE = re.compile(r"^(?: {4}|>>> ).*$|`[^`]*`|[<*_]", re.MULTILINE)


def escaped(text: str) -> str:
    """Return a docstring as Markdown, in which angle brackets, stars and underscores of prose are text."""
    return CODE.sub(lambda match: {"<": "&lt;", "*": "\\*", "_": "\\_"}.get(match[0], match[0]), text)


def brief(name: Name) -> str:
    """Return the first sentence of a docstring, as Markdown in one line."""
    first = docstring(name).split("\n\n")[0].replace("\n", " ")
    sentence = re.split(r"(?<=[.;])\s", first)[0]
    return escaped(sentence[:-1] + "." if sentence.endswith(";") else sentence).replace("|", "\\|")


def call(name: Name) -> str:
    """Return the word of a name with its signature."""
    return f"{name.word}{name.signature or ''}"


def has_table(name: Name) -> bool:
    """Return True for a class with too many members for entries."""
    return len(members(name)) > LONGEST


def member_list(name: Name) -> str:
    """Return the members without docstrings as one paragraph with anchors."""
    plain = [] if has_table(name) else [each for each in members(name) if not documented(each)]
    return "\n\nMembers: " + ", ".join(f'<a id="{each.anchor}"></a>`{call(each)}`' for each in plain) + "." if plain else ""


def as_object(name: Name) -> griffe.Object:
    """Return the griffe object of a public name."""
    text = griffe.Docstring(escaped(docstring(name)) + (member_list(name) if name.is_class else ""), parser=None)
    if name.is_class:
        result: griffe.Object = griffe.Class(name.word, docstring=text, bases=list(name.bases))
        result.set_member(
            "__init__",
            griffe.Function(
                "__init__", parameters=griffe.Parameters(griffe.Parameter("self", kind=KIND.positional_or_keyword), *parameters(name.signature))
            ),
        )
        for each in members(name):
            if documented(each) and not has_table(name):
                result.set_member(each.word, as_object(each))
        return result
    if name.signature is None and isinstance(value_of(name.path), property):
        return griffe.Attribute(name.word, docstring=text)
    return griffe.Function(name.word, parameters=parameters((of_tensors(name) or name).signature), docstring=text)


class PublicObjects(griffe.Extension):
    """An extension of griffe that fills the stand-in package with the public objects."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **options: Any) -> None:
        for name in names().values():
            if name.is_module:
                _module(pkg, name.path)
        for name in names().values():
            if not name.is_module and not is_member(name) and documented(name) and name.path.isascii() and not re.search(r"[<(\[]", name.path):
                _module(pkg, name.parent).set_member(name.word, as_object(name))


def _module(package: griffe.Module, path: str) -> griffe.Module:
    """Return a module below the package, with its parents."""
    for word in path.split(".")[1:]:
        if word not in package.members:
            package.set_member(word, griffe.Module(word))
        package = package.members[word]  # type: ignore[assignment]
    return package
