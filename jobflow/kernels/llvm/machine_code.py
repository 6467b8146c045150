"""Compilation of LLVM IR to functions; the machine code is loaded until the process ends."""

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
#: description of the compilation, a part of cache keys
OPTIONS = "no passes, code generation at 3, for a process"


Function = Callable[[Any], None]


@dataclass(frozen=True)
class Printed:
    """The text of an LLVM module, and a note for the caller of its function, such as the types of the scratch rows."""

    text: str
    note: str = ""


@cache
def printers() -> str:
    """Return a digest of the modules that determine printed texts: expressions and their translation to loops."""
    digest = hashlib.blake2b(digest_size=16)
    here = Path(__file__).parent
    for folder in (here.parents[1] / "expressions", here.parent, here):
        for module in sorted(folder.glob("*.py")):
            digest.update(module.read_bytes())
    return digest.hexdigest()


def _llvm() -> Any:
    return optional("llvmlite.binding", "kernels('llvm')")


def _features(llvm: Any) -> str:
    """Return the features of this machine, without features that its class excludes."""
    features = llvm.get_host_cpu_features()
    if own_class() == "avx2":
        features |= {name: False for name in features if name.startswith(("avx512", "avx10", "evex512", "amx"))}
    text: str = features.flatten()
    return text


class Compiler:
    """A compiler for the CPU of this machine, or for another named CPU."""

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
        self._counter = itertools.count()
        self.versions = (optional("llvmlite", "kernels('llvm')").__version__, *llvm.llvm_version_info)
        self._fixed_cache, self._cache = cache, ObjectCache()

    @property
    def cache(self) -> ObjectCache:
        """The cache of compiled code: the one passed to the constructor, or the one in the currently configured folder."""
        if self._cache.folder != (now := ObjectCache().folder):
            self._cache = ObjectCache(now)
        return self._fixed_cache or self._cache

    def _has(self, feature: str) -> bool:
        """Return True if the CPU has this x86 feature; also on other architectures, which have equivalents of all features used here."""
        return not self.triple.startswith(("x86_64", "i686")) or f"+{feature}" in self.features.split(",")

    @property
    def has_fma(self) -> bool:
        return self._has("fma")

    @property
    def primitives(self) -> frozenset[str]:
        """The functions of the expression language for which this machine has an instruction, but some other machines have none."""
        return frozenset({"ldexp"} if "+avx512f" in self.features.split(",") else ())

    @property
    def vector_bytes(self) -> int:
        """The size of a vector register in bytes."""
        if not self.triple.startswith(("x86_64", "i686")):
            return 16
        return 64 if self._has("avx512f") else 32 if self._has("avx2") else 16

    @property
    def has_float16(self) -> bool:
        return self._has("f16c")

    def function(self, text: str) -> Function:
        """Return the machine code of a module's `loop`, from this process, from the cache on disk, or newly compiled."""
        return self._lookup(text, lambda: Printed(text))[0]

    def printed(self, source: str, text: Callable[[], Printed]) -> tuple[Function, str]:
        """Return the machine code of a printed module and its note; `text` prints the module, and is called only if no cache has the code.

        `source` describes the input from which this package prints the text.
        """
        return self._lookup(f"{printers()} {source}", text)

    def _lookup(self, source: str, text: Callable[[], Printed]) -> tuple[Function, str]:
        with self._lock:
            compiled = self._functions.get(source)
            if compiled is None:
                self._functions[source] = compiled = self._cached(source) or self._compiled(source, text())
        return compiled

    def key(self, source: str) -> str:
        """Return the cache key of a text or its source: a digest of all inputs of the compilation."""
        parts = [*map(str, self.versions), self.triple, self.cpu, self.features, OPTIONS, source]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _cached(self, source: str) -> tuple[Function, str] | None:
        content = self.cache.read(self.key(source))
        if content is None:
            return None
        note, _, code = content.partition(b"\n")
        try:
            return self._linked(code), note.decode()
        except (RuntimeError, UnicodeDecodeError):  # a complete file that this LLVM cannot load
            return None

    def _compiled(self, source: str, printed: Printed) -> tuple[Function, str]:
        code = self.object_code(printed.text)
        self.cache.write(self.key(source), printed.note.encode() + b"\n" + code)
        return self._linked(code), printed.note

    def object_code(self, text: str) -> bytes:
        """Compile a text without optimization passes; it is already vectorized, so passes would only double the compile time."""
        module = _llvm().parse_assembly(text)
        module.verify()
        code: bytes = self._machine.emit_object(module)
        return code

    def _linked(self, code: bytes) -> Function:
        library = _llvm().JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(NAME)
        library = library.link(self._linker, f"library{next(self._counter)}")
        self._libraries.append(library)  # keeps the code alive
        function: Function = COMPILED(library[NAME])
        return function


def compiler() -> Compiler:
    """Return the compiler of this process, which all threads share; the machine code is freed with the compiler."""
    with _creation:
        return _compiler()


_creation = threading.Lock()
_compiler = cache(Compiler)
