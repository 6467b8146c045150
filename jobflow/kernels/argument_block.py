"""Argument blocks of compiled functions: arrays of 64-bit words, some of which are addresses of arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from jobflow.core.types import Array

#: the type of compiled functions, which take the address of an argument block
COMPILED = ctypes.CFUNCTYPE(None)


class ArgumentBlock(ctypes.c_void_p):
    """The address of an argument block; the object keeps the block and its arrays alive."""

    block: Array
    arrays: tuple[Array, ...]
    #: per array, the index of the word that points into it
    indices: tuple[int, ...]


def argument_block(words: Sequence[int], arrays: Sequence[Array], indices: Sequence[int] | None = None) -> ArgumentBlock:
    """Build the argument block of a compiled function from `words`, in which `words[indices]` are the addresses of `arrays`.

    Without `indices`, the addresses are the first words.  The result keeps the arrays alive.
    """
    block = np.array(words, np.int64)
    argument = ArgumentBlock(address(block))
    argument.block, argument.arrays = block, tuple(arrays)
    argument.indices = tuple(range(len(arrays)) if indices is None else indices)
    return argument


def _reported_address(array: Array) -> int:
    start: int = array.__array_interface__["data"][0]
    return start


def _read_address(array: Array) -> int:
    """Read the address from the array object; NumPy's ABI stores the address directly after the object header."""
    return _pointer(id(array) + _HEAD).value or 0


_pointer, _HEAD = ctypes.c_void_p.from_address, object.__basicsize__


def _choose() -> Callable[[Array], int]:
    """Return the function for the address of an array: the fast `_read_address` if it is correct for an example, otherwise `_reported_address`."""
    example = np.arange(4.0)[1:]
    return _read_address if _read_address(example) == _reported_address(example) else _reported_address


#: the address of an array's first element
address: Callable[[Array], int] = _choose()
