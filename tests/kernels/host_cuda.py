"""Execution of CUDA kernels on the host: the same text, compiled by g++ with emulated CUDA built-ins.

The threads of a block are contexts that are switched at `__syncthreads` and at shuffles; blocks run sequentially.  Between two barriers, threads run
one after another, in an order that changes at each barrier.  A missing barrier therefore changes results, and divergent barriers raise an error.  All
kernels of a test are compiled together.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from jobflow.core.types import Array, DType
from jobflow.expressions.language import Expression
from jobflow.kernels.cuda.fused import PreparedKernel, launched, prepared
from jobflow.kernels.cuda.kernel_text import NAME
from jobflow.kernels.cuda.primitives import FUNCTIONS

COMPILER = shutil.which("g++")

BUILT_INS = r"""
#include <math.h>
#include <setjmp.h>
#include <string.h>
#include <ucontext.h>
template <typename T> static T min(T a, T b) { return b < a ? b : a; }
template <typename T> static T max(T a, T b) { return a < b ? b : a; }
template <typename T> static T atomicMax(T *at, T b) { T before = *at; *at = max(before, b); return before; }
#define __global__
#define __device__
#define __shared__
#define __launch_bounds__(...)
#define __builtin_assume(condition)

struct uint2 { unsigned int x, y; };
struct alignas(16) uint4 { unsigned int x, y, z, w; };
static unsigned int __umulhi(unsigned int a, unsigned int b) { return (unsigned long long)a * b >> 32; }

struct Place { unsigned int x, y, z; };
static Place threadIdx, blockIdx, gridDim;
static int turn;
// a thread's context is created once; later switches are jumps, because swapcontext makes a system call for the mask of signals
static ucontext_t creator, created;
static jmp_buf scheduler, threads[256];
static char stacks[256][1 << 15], passed[256][8];
static bool exists[256], over[256];
// the return address of the barrier at which a thread waits
static void *barriers[256];
static void (*kernel)(void **);
static void **given;

static __attribute__((noinline)) void __syncthreads() {
  barriers[turn] = __builtin_return_address(0);
  if (!_setjmp(threads[turn])) _longjmp(scheduler, 1);
}
template <typename T> static T shuffled(T mine, int distance) {
  memcpy(passed[turn], &mine, sizeof mine);
  __syncthreads();
  T other;
  memcpy(&other, passed[turn ^ distance], sizeof other);
  __syncthreads();
  return other;
}
// CUDA has these overloads and no others: narrower integers come back as int
#define SHUFFLE(T) static T __shfl_xor_sync(unsigned int, T mine, int distance) { return shuffled(mine, distance); }
SHUFFLE(int) SHUFFLE(unsigned int) SHUFFLE(long) SHUFFLE(unsigned long) SHUFFLE(long long) SHUFFLE(unsigned long long) SHUFFLE(float) SHUFFLE(double)
template <typename To, typename From> static To bits(From x) { To y; memcpy(&y, &x, sizeof y); return y; }
static float __int_as_float(int x) { return bits<float>(x); }
static int __float_as_int(float x) { return bits<int>(x); }
static double __longlong_as_double(long long x) { return bits<double>(x); }
static long long __double_as_longlong(double x) { return bits<long long>(x); }

template <int... I> struct Indices {};
template <typename... A, int... I> static void call(void (*f)(A...), void **a, Indices<I...>) { f(*(A *)a[I]...); }
template <typename... A> static void call(void (*f)(A...), void **a) { call(f, a, Indices<__integer_pack(int(sizeof...(A)))...>()); }

static void one_thread() {
  for (;;) {
    kernel(given);
    over[turn] = true;
    __syncthreads();
  }
}

static __attribute__((noinline)) void resume() {
  if (_setjmp(scheduler)) return;
  if (exists[turn]) _longjmp(threads[turn], 1);
  exists[turn] = true;
  getcontext(&created);
  created.uc_stack.ss_sp = stacks[turn];
  created.uc_stack.ss_size = sizeof stacks[turn];
  makecontext(&created, one_thread, 0);
  swapcontext(&creator, &created);
}

// returns 0 if threads of a block wait at different barriers
extern "C" int launch(void (*f)(void **), void **arguments, unsigned int blocks, unsigned int x, unsigned int y) {
  kernel = f, given = arguments, gridDim = {blocks, 1, 1};
  const int count = int(x * y);
  unsigned int random = 1;
  for (unsigned int block = 0; block < blocks; ++block) {
    blockIdx = {block, 0, 0};
    memset(over, 0, sizeof over);
    for (bool going = true; going;) {
      random = random * 1664525u + 1013904223u;
      const int start = int((random >> 8) % count), step = random >> 31 ? 1 : count - 1;
      void *barrier = nullptr;
      going = false;
      for (int k = 0; k < count; ++k) {
        turn = (start + k * step) % count;
        if (over[turn]) continue;
        threadIdx = {turn % x, turn / x, 0};
        resume();
        if (over[turn]) continue;
        going = true;
        if (barrier && barrier != barriers[turn]) {
          memset(exists, 0, sizeof exists);
          return 0;
        }
        barrier = barriers[turn];
      }
    }
  }
  return 1;
}
"""
#: host versions of functions in GPU assembly
HALF = {
    "from_half": "static float from_half(unsigned short x) { return (float)bits<_Float16>(x); }",
    "to_half": "static unsigned short to_half(float x) { return bits<unsigned short>((_Float16)x); }",
}


@dataclass
class Case:
    """Expressions, their inputs, and the targets of their outputs."""

    outputs: Sequence[Expression]
    inputs: Sequence[Array]
    targets: Sequence[Array]


@dataclass
class HostKernels:
    """Cases that are compiled together, and then run."""

    folder: Path
    cases: list[Case] = field(default_factory=list)

    def add(self, outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> None:
        self.cases.append(Case(outputs, inputs, targets))

    def run(self) -> None:
        texts = dict[str, str]()
        scratch: list[Array] = []

        def allocate(shape: tuple[int, ...], dtype: DType) -> Array:
            scratch.append(_aligned(shape, dtype))
            return scratch[-1]

        stages = [[(ready, ready.text("NAME")) for ready in prepared(c.outputs, c.inputs, c.targets, allocate)] for c in self.cases]
        for _, text in (one for kernels in stages for one in kernels):
            texts.setdefault(text, f"{NAME}{len(texts)}")
        loaded = library([text.replace("NAME", name) for text, name in texts.items()], self.folder)
        for ready, text in (one for kernels in stages for one in kernels):
            run_kernel(loaded, texts[text], ready)


def _aligned(shape: tuple[int, ...], dtype: DType) -> Array:
    """Return an array of NaN at an address that is a multiple of 256."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 256, np.uint8)
    start = -memory.ctypes.data % 256
    array = memory[start : start + size].view(dtype.numpy).reshape(shape)
    array[...] = np.nan if dtype.is_float else 1
    return array


def run_kernel(loaded: Any, name: str, ready: PreparedKernel) -> None:
    """Run a kernel of a library with fewer blocks than it needs, so that its loops run more than once."""
    blocks, block, arguments = launched(ready)
    launch(loaded, name, (min(blocks, 3),), block, arguments)


def library(texts: Sequence[str], folder: Path) -> Any:
    """Compile texts whose kernels have distinct names."""
    source = []
    for k, text in enumerate(texts):
        for function, host in HALF.items():
            text = text.replace(FUNCTIONS[function], host)
        source.append(f"namespace text{k} {{\n{text}}}")
        for kernel in re.findall(r'extern "C" __global__ void __launch_bounds__\([^)]*\) (\w+)\(', text):
            source.append(f'extern "C" void call_{kernel}(void **a) {{ call(text{k}::{kernel}, a); }}')
    file, output = folder / "kernels.cc", folder / "kernels.so"
    file.write_text("\n".join(source))
    compile_cpp("-include", str(built_ins()), "-shared", str(file), "-o", str(output))
    return ctypes.CDLL(str(output))


@cache
def built_ins() -> Path:
    """Return the path of a header with the built-ins and its precompiled form, which g++ reads faster than the text."""
    folder = Path(tempfile.mkdtemp(prefix="jobflow-cuda-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    header = folder / "built_ins.h"
    header.write_text(BUILT_INS)
    compile_cpp("-x", "c++-header", str(header), "-o", f"{header}.gch")
    return header


def compile_cpp(*arguments: str) -> None:
    """Run g++ without the C++ library, which NVRTC lacks, too, and whose <math.h> takes longer to parse than most kernels."""
    assert COMPILER is not None
    command = [COMPILER, "-nostdinc++", "-std=c++17", "-O0", "-ffp-contract=off", "-w", "-fPIC", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:5000]


def launch(loaded: Any, name: str, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any]) -> None:
    """Run a kernel; arrays, including those of an emulated GPU, are passed by address."""
    values = [_number(a) if isinstance(a, np.generic) else ctypes.c_void_p(_address(a)) for a in arguments]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    converges = loaded.launch(getattr(loaded, f"call_{name}"), pointers, grid[0], block[0], block[1] if len(block) > 1 else 1)
    assert converges, f"{name}: threads of a block wait at different barriers"


def _address(array: Any) -> int:
    return array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data.ptr


def _number(value: Any) -> Any:
    return ctypes.c_longlong(int(value)) if value.dtype.itemsize == 8 else ctypes.c_int(int(value))
