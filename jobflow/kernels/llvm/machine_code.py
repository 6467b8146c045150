"""LLVM IR to functions: one library of machine code per text, kept for as long as the process lives."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.extras import optional
from jobflow.kernels.argument_block import COMPILED
from jobflow.kernels.machine_class import own_class
from jobflow.kernels.object_cache import ObjectCache

#: the name of the function in every module
NAME = "loop"
#: how texts are compiled
OPTIONS = "no passes, code generation at 3, for a process"


Function = Callable[[Any], None]


@dataclass(frozen=True)
class Printed:
    """A text, and a line that whoever calls its function must know."""

    text: str
    note: str = ""


@cache
def printers() -> str:
    """A digest of the modules that have a part in what is printed: expressions, and how they become loops."""
    digest = hashlib.blake2b(digest_size=16)
    here = Path(__file__).parent
    for folder in (here.parents[1] / "expressions", here.parent, here):
        for module in sorted(folder.glob("*.py")):
            digest.update(module.read_bytes())
    return digest.hexdigest()


def _llvm() -> Any:
    return optional("llvmlite.binding", "kernels('llvm')")


def _features(llvm: Any) -> str:
    """Those of this machine, without what its class has not."""
    found = llvm.get_host_cpu_features()
    if own_class() == "avx2":
        found |= {name: False for name in found if name.startswith(("avx512", "avx10", "evex512", "amx"))}
    text: str = found.flatten()
    return text


class Compiler:
    """For the CPU of this machine, or a lesser one that is named."""

    def __init__(self, cache: ObjectCache | None = None, cpu: str = "", features: str = "") -> None:
        llvm = _llvm()
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.cpu: str = cpu or llvm.get_host_cpu_name()
        self.features: str = features or _features(llvm)
        target = llvm.Target.from_default_triple()
        self.triple: str = target.triple
        self._machine = target.create_target_machine(cpu=self.cpu, features=self.features, opt=3, jit=True)
        self._linker = llvm.create_lljit_compiler(self._machine)
        self._lock = threading.Lock()
        self._functions: dict[str, tuple[Function, str]] = {}
        self._libraries: list[Any] = []
        self._numbers = itertools.count()
        self.versions = (optional("llvmlite", "kernels('llvm')").__version__, *llvm.llvm_version_info)
        self._given, self._cache = cache, ObjectCache()

    @property
    def cache(self) -> ObjectCache:
        """What was compiled before: in the folder that was given, or in the one that is set now."""
        if self._cache.folder != (now := ObjectCache().folder):
            self._cache = ObjectCache(now)
        return self._given or self._cache

    def _has(self, feature: str) -> bool:
        """Has the CPU this feature of x86?  All others that NumPy runs on have what is asked for here."""
        return not self.triple.startswith(("x86_64", "i686")) or f"+{feature}" in self.features.split(",")

    @property
    def has_fma(self) -> bool:
        return self._has("fma")

    @property
    def primitives(self) -> frozenset[str]:
        """Functions of the language that this machine has an instruction for, and others have not."""
        return frozenset({"ldexp"} if "+avx512f" in self.features.split(",") else ())

    @property
    def vector_bytes(self) -> int:
        """The size of a vector register."""
        if not self.triple.startswith(("x86_64", "i686")):
            return 16
        return 64 if self._has("avx512f") else 32 if self._has("avx2") else 16

    @property
    def has_float16(self) -> bool:
        return self._has("f16c")

    def function(self, text: str) -> Function:
        """The machine code of a module's `loop`: of this process, else from the cache on disk, else compiled."""
        return self._found(text, lambda: Printed(text))[0]

    def printed(self, source: str, text: Callable[[], Printed]) -> tuple[Function, str]:
        """The same of a text that is printed only if need be, and its note; `source` is what this package prints it from."""
        return self._found(f"{printers()} {source}", text)

    def _found(self, source: str, text: Callable[[], Printed]) -> tuple[Function, str]:
        with self._lock:
            found = self._functions.get(source)
            if found is None:
                self._functions[source] = found = self._kept(source) or self._compiled(source, text())
        return found

    def key(self, source: str) -> str:
        """A name for the machine code of a text, or of what it is printed from: a digest of all that it depends on."""
        parts = [*map(str, self.versions), self.triple, self.cpu, self.features, OPTIONS, source]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _kept(self, source: str) -> tuple[Function, str] | None:
        kept = self.cache.read(self.key(source))
        if kept is None:
            return None
        note, _, code = kept.partition(b"\n")
        try:
            return self._linked(code), note.decode()
        except (RuntimeError, UnicodeDecodeError):  # it is whole, and yet not what this LLVM takes
            return None

    def _compiled(self, source: str, printed: Printed) -> tuple[Function, str]:
        code = self.object_code(printed.text)
        self.cache.write(self.key(source), printed.note.encode() + b"\n" + code)
        return self._linked(code), printed.note

    def object_code(self, text: str) -> bytes:
        """Without passes over the text: it is vectorised already, they gain nothing and take as long again as what is here."""
        module = _llvm().parse_assembly(text)
        module.verify()
        code: bytes = self._machine.emit_object(module)
        return code

    def _linked(self, code: bytes) -> Function:
        library = _llvm().JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(NAME)
        library = library.link(self._linker, f"library{next(self._numbers)}")
        self._libraries.append(library)  # the code is gone with it
        function: Function = COMPILED(library[NAME])
        return function


def compiler() -> Compiler:
    """That of this process.  One for all threads: the machine code that one has made is gone with it."""
    with _creation:
        return _compiler()


_creation = threading.Lock()
_compiler = cache(Compiler)
