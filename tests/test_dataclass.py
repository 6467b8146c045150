"""Classes made by `jobflow.core.dataclass` beside those of the standard library: what the laws of both are, said of both."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError, InitVar, asdict, field, fields, replace
from typing import Any, ClassVar

import pytest

from jobflow.core.dataclass import dataclass

KINDS: list[dict[str, bool]] = [
    {},
    {"eq": False},
    {"repr": False},
    {"frozen": True},
    {"frozen": True, "eq": False},
    {"frozen": True, "slots": True},
    {"slots": True, "eq": False},
    {"frozen": True, "eq": False, "slots": True, "weakref_slot": True},
]


def classes(decorator: Callable[..., Any], **options: bool) -> dict[str, Any]:
    """Classes of every kind, by name."""

    @decorator(**options)
    class Plain:
        x: int
        y: int = 2

    @decorator(**options)
    class Derived(Plain):
        """With a documentation of its own."""

        total: ClassVar[int] = 7
        z: list[int] = field(default_factory=list)
        hidden: int = field(default=0, repr=False, compare=False)
        named: float = field(default=0.5, kw_only=True)

    @decorator(**options)
    class Completed:
        x: int
        factor: InitVar[int] = 3
        product: int = field(init=False)
        parts: list[int] = field(init=False, default_factory=list)

        def __post_init__(self, factor: int) -> None:
            object.__setattr__(self, "product", self.x * factor)

    @decorator(**options)
    class Own:
        x: int
        y: int = 0

        def __init__(self, x: int) -> None:
            object.__setattr__(self, "x", x)
            object.__setattr__(self, "y", -x)

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

        def __repr__(self) -> str:
            return "own"

    @decorator(**options)
    class Empty:
        pass

    class Undecorated(Derived):
        pass

    return {cls.__name__: cls for cls in (Plain, Derived, Completed, Own, Empty, Undecorated)}


def behaviour(cls: Any, arguments: tuple[int, ...]) -> dict[str, Any]:
    """All that is said of a class and its objects, without which of the two made it."""
    one, other = cls(*arguments), cls(*arguments)
    parameters = inspect.signature(cls).parameters.values()
    outcomes: dict[str, Any] = {
        "fields": [(f.name, f.type, f.init, f.compare, f.kw_only) for f in fields(cls)],
        "signature": [(p.name, p.kind, p.annotation, repr(p.default)) for p in parameters],
        "text": repr(one) if cls.__repr__ is not object.__repr__ else "of all objects",
        "match": cls.__match_args__,
        "equal": (one == other, one == 3, one == copy.copy(one), one == one),
        "values": asdict(one),
        "copy": asdict(copy.deepcopy(one)),
        "slots": hasattr(one, "__dict__"),
    }
    for name, change in (
        ("replace", lambda: one == replace(one, x=1)),
        ("hash", lambda: hash(one) == hash(other)),
        ("set", lambda: setattr(one, "x", 9)),
        ("delete", lambda: delattr(one, "x")),
    ):
        try:
            outcomes[name] = change()
        except (AttributeError, TypeError, ValueError) as error:
            outcomes[name] = error.args[0], isinstance(error, FrozenInstanceError)
    return outcomes


@pytest.mark.parametrize("options", KINDS, ids=lambda options: "-".join(options) or "plain")
def test_a_class_does_what_the_librarys_does(options: dict[str, bool]) -> None:
    theirs, ours = classes(dataclasses.dataclass, **options), classes(dataclass, **options)
    for name, arguments in (
        ("Plain", (1,)),
        ("Plain", (1, 3)),
        ("Derived", (1, 2)),
        ("Completed", (4,)),
        ("Own", (4,)),
        ("Empty", ()),
        ("Undecorated", (1, 5)),
    ):
        if options.get("slots") and name == "Empty":
            continue  # where the library means to say that nothing can be assigned, an error of its own comes
        assert behaviour(ours[name], arguments) == behaviour(theirs[name], arguments), name


def test_wrong_arguments_raise_like_the_library() -> None:
    theirs, ours = classes(dataclasses.dataclass), classes(dataclass)
    for call in (lambda cls: cls(), lambda cls: cls(1, 2, 3, 4, 5), lambda cls: cls(1, wrong=2)):
        with pytest.raises(TypeError) as expected:
            call(theirs["Derived"])
        with pytest.raises(TypeError) as error:
            call(ours["Derived"])
        assert str(error.value) == str(expected.value)


def test_threads_may_make_the_first_objects_of_a_class_at_once() -> None:
    for _ in range(50):
        cls, wrong = classes(dataclass, frozen=True)["Plain"], []
        start = threading.Barrier(4)

        def make(cls: Any = cls, wrong: list[object] = wrong, start: threading.Barrier = start) -> None:
            start.wait()
            try:
                objects = [cls(1, n) for n in range(20)]
                if len(set(objects)) != 20 or objects[3] != cls(1, 3):
                    wrong.append(objects)
            except Exception as error:  # noqa: BLE001
                wrong.append(error)

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_classes_of_the_library_derive_from_them() -> None:
    """As operations that users write do."""

    @dataclass(frozen=True)
    class Base:
        x: int = 1

    @dataclasses.dataclass(frozen=True)
    class Derived(Base):
        y: int = 2

    assert Derived(3) == Derived(3, 2) and hash(Derived(3)) == hash(Derived(3)) and repr(Derived(3)).endswith("Derived(x=3, y=2)")
    with pytest.raises(FrozenInstanceError):
        Derived(3).x = 4  # type: ignore[misc]
    with pytest.raises(TypeError, match="cannot inherit non-frozen"):
        dataclasses.dataclass(type("Loose", (Base,), {}))
