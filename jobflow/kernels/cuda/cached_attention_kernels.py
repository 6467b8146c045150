"""Attention over caches of keys and values on GPUs, whose numbers of valid rows are read on the GPU.

A block has a tile of the queries of one head.  It iterates over tiles of the valid rows of the cache, and then of the new tokens, by the online
softmax of `attention_text`.  If there are too few tiles of queries to occupy a GPU, n blocks share the keys of a tile of queries.  Block s reads the
tiles of keys s, s + n, s + 2n and so on.  A second kernel combines the maxima and sums of the blocks in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from string import Template
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, dtype_of, float32
from jobflow.kernels.cuda.attention_text import LARGEST, SHARED, SIDE, SUM_OF_ROW, THREADS, thread_column, unrolled
from jobflow.kernels.cuda.compiled_text import compiler
from jobflow.kernels.cuda.fused import placeholders
from jobflow.kernels.cuda.kernel_text import with_functions
from jobflow.kernels.cuda.launches import KernelLaunch, refused_arrays
from jobflow.kernels.cuda.pooling_kernels import addresses
from jobflow.kernels.cuda.primitives import from_memory, literal, stored_type, to_memory
from jobflow.kernels.registry import register
from jobflow.ops.cached_attention import CachedAttention
from jobflow.ops.op import Binder, Call, Op

NAME = "cached_attention"
#: queries and keys of a tile, the best first
TILES = ((64, 64), (64, 32), (32, 64), (32, 32), (16, 64), (16, 32), (16, 16))
#: blocks that occupy a GPU, and most blocks of a launch
OCCUPIED, MOST = 512, 1 << 31

_ATTENTION = Template(
    unrolled("""
  static __shared__ float q_tile[$BM * $EP], tile[$BN * $XP], weights[$BM * $NP];
  const int t = threadIdx.x, tx = t % $SIDE, ty = t / $SIDE;
  const int split = (int)(blockIdx.x % $SPLITS), r0 = (int)(blockIdx.x / $SPLITS % $ROW_TILES) * $BM;
  const long long head = blockIdx.x / $SPLITS / $ROW_TILES, b = head / $HEADS, h = head % $HEADS;
  const int used = (int)min(max((long long)$ROWS, 0LL), ${LENGTH}LL), cached_tiles = (used + $BN - 1) / $BN;
  const int last = r0 % $NEW + $BM > $NEW ? $NEW - 1 : r0 % $NEW + $BM - 1;  // the last new token that a query of the block sees
  for (int i = t; i < $BM * $E; i += $THREADS) {
    const int r = i / $E, e = i % $E;
    q_tile[r * $EP + e] = r0 + r < $M ? $Q : 0.0f;
  }
  float sums[$RM][$FM] = {}, top[$RM], total[$RM] = {};
  for (int i = 0; i < $RM; ++i) top[i] = $NEGATIVE;
  for (int n = split; n < cached_tiles + $NEW_TILES; n += $SPLITS) {
    const bool is_new = n >= cached_tiles;
    const int c0 = (is_new ? n - cached_tiles : n) * $BN, count = min((is_new ? $NEW : used) - c0, $BN);
    if (is_new && c0 > last) continue;
    const $STORED *key = is_new ? k + ($NEW_KEY) : keys + ($OLD_KEY), *value = is_new ? v + ($NEW_VALUE) : values + ($OLD_VALUE);
    const long long key_row = is_new ? $NEW_KEY_ROW : $OLD_KEY_ROW, key_element = is_new ? $NEW_KEY_ELEMENT : $OLD_KEY_ELEMENT;
    const long long value_row = is_new ? $NEW_VALUE_ROW : $OLD_VALUE_ROW, value_element = is_new ? $NEW_VALUE_ELEMENT : $OLD_VALUE_ELEMENT;
    __syncthreads();
    for (int i = t; i < $BN * $E; i += $THREADS) {
      const int c = i / $E, e = i % $E;
      tile[c * $XP + e] = c < count ? $KEY : 0.0f;
    }
    __syncthreads();
    float score[$RM][$CN] = {};
    for (int e = 0; e < $E; ++e)
      for (int i = 0; i < $RM; ++i)
        for (int j = 0; j < $CN; ++j)
          score[i][j] = fmaf(q_tile[(ty + $SIDE * i) * $EP + e], tile[(tx + $SIDE * j) * $XP + e], score[i][j]);
    for (int i = 0; i < $RM; ++i) {
      const int r = ty + $SIDE * i, visible = is_new ? min((r0 + r) % $NEW + 1 - c0, count) : count;
      float most = $NEGATIVE;
      for (int j = 0; j < $CN; ++j) {
        score[i][j] = tx + $SIDE * j < visible ? score[i][j] * $SCALE : $NEGATIVE;
        most = larger<float>(most, score[i][j]);
      }
      most = larger<float>(top[i], largest_of_row(most));
      const float base = most == $NEGATIVE ? 0.0f : most, before = expf(top[i] - base);
      float part = 0.0f;
      for (int j = 0; j < $CN; ++j) {
        const float p = expf(score[i][j] - base);
        part = part + p;
        weights[r * $NP + tx + $SIDE * j] = p;
      }
      total[i] = total[i] * before + sum_of_row(part);
      for (int j = 0; j < $FM; ++j) sums[i][j] = sums[i][j] * before;
      top[i] = most;
    }
    __syncthreads();
    for (int i = t; i < $BN * $F; i += $THREADS) {
      const int c = i / $F, f = i % $F;
      tile[c * $XP + f] = c < count ? $VALUE : 0.0f;
    }
    __syncthreads();
    for (int c = 0; c < $BN; ++c)
      for (int i = 0; i < $RM; ++i)
        for (int j = 0; j < $FM; ++j)
          sums[i][j] = fmaf(weights[(ty + $SIDE * i) * $NP + c], tile[c * $XP + $FJ], sums[i][j]);
  }
  for (int i = 0; i < $RM; ++i) {
    const int row = r0 + ty + $SIDE * i;
    if (row >= $M) continue;
    const long long place = (head * $M + row) * $SPLITS + split;
    $TOP
    for (int j = 0; j < $FM; ++j) {
      const int f = tx + $SIDE * j;
      if (f >= $F) continue;
      $RESULT
    }
  }
""")
)

_COMBINE = Template("""
  for (long long i = blockIdx.x * ${THREADS}LL + threadIdx.x; i < ${QUERIES}LL * $F; i += gridDim.x * ${THREADS}LL) {
    const long long f = i % $F, query = i / $F, row = query % $M, h = query / $M % $HEADS, b = query / $M / $HEADS;
    const float *of_query = tops + query * (2 * $SPLITS);
    float most = $NEGATIVE, total = 0.0f, sum = 0.0f;
    for (int s = 0; s < $SPLITS; ++s) most = larger<float>(most, of_query[2 * s]);
    for (int s = 0; s < $SPLITS; ++s) {
      const float factor = expf(of_query[2 * s] - most);
      total = total + of_query[2 * s + 1] * factor;
      sum = sum + parts[(query * $SPLITS + s) * $F + f] * factor;
    }
    $Y = $COMBINED;
  }
""")


class CachedAttentionText:
    """The kernels for the arrays q, k, v, keys, values, rows and y; sizes and strides are constants of the text."""

    def __init__(self, op: CachedAttention, arrays: Sequence[Array], name: str = NAME) -> None:
        self.op, self.arrays, self.name = op, arrays, name

    @cached_property
    def tile(self) -> tuple[int, int]:
        """The numbers of queries and keys of a tile."""
        q, _, v = self.arrays[:3]
        queries, e, f = q.shape[2], q.shape[3], v.shape[3]
        possible = [(m, n) for m, n in TILES if 4 * (m * (e | 1) + n * (max(e, f) | 1) + m * (n | 1)) <= SHARED]
        return next((each for each in possible if each[0] < max(2 * queries, SIDE + 1)), possible[-1])

    @property
    def row_tiles(self) -> int:
        """The tiles of the queries of a head."""
        return -(-self.arrays[0].shape[2] // self.tile[0])

    @property
    def heads(self) -> int:
        return int(math.prod(self.arrays[0].shape[:2]))

    @cached_property
    def splits(self) -> int:
        """The blocks that share the keys of a tile of queries."""
        keys = sum(-(-a.shape[2] // self.tile[1]) for a in (self.arrays[1], self.arrays[3]))
        return max(min(OCCUPIED // (self.heads * self.row_tiles), keys), 1)

    @property
    def blocks(self) -> int:
        return self.heads * self.row_tiles * self.splits

    def scratch_shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the maxima and sums, and of the parts of the results; none if no blocks share keys."""
        places = self.heads * self.arrays[0].shape[2] * self.splits
        return [(places, 2), (places, self.arrays[2].shape[3])] if self.splits > 1 else []

    def text(self) -> str:
        """Print the kernels; the parameters of each are the pointers of the arrays and of the scratch arrays."""
        stored = [stored_type(dtype_of(a.dtype)) for a in self.arrays]
        names = ("q", "k", "v", "keys", "values", "rows")
        pointers = [f"const {type} *__restrict__ {name}" for type, name in zip(stored, names, strict=False)]
        pointers += [f"{stored[-1]} *__restrict__ y", *(f"float *__restrict__ {name}" for name in ("tops", "parts") if self.splits > 1)]
        words, texts = self._words(), {self.name: _ATTENTION, f"{self.name}_combined": _COMBINE}
        kernels = [
            f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}(\n    {", ".join(pointers)}) {{{body.substitute(words)}}}\n'
            for name, body in list(texts.items())[: 1 if self.splits == 1 else 2]
        ]
        return with_functions("\n\n".join([SUM_OF_ROW, *kernels]))

    def _words(self) -> dict[str, Any]:
        q, k, v, keys, values, rows, y = self.arrays
        (m, n), e, f, dtype = self.tile, q.shape[3], v.shape[3], dtype_of(q.dtype)
        words: dict[str, Any] = {"BM": m, "BN": n, "E": e, "F": f, "M": q.shape[2], "NEW": k.shape[2], "LENGTH": keys.shape[2], "HEADS": q.shape[1]}
        words |= {"EP": e | 1, "XP": max(e, f) | 1, "NP": n | 1, "SIDE": SIDE, "THREADS": THREADS, "FJ": thread_column(f)}
        words |= {"RM": m // SIDE, "CN": n // SIDE, "FM": -(-f // SIDE), "NEGATIVE": literal(-math.inf, float32)}
        words |= {"SPLITS": self.splits, "ROW_TILES": self.row_tiles, "NEW_TILES": -(-k.shape[2] // n), "QUERIES": self.heads * q.shape[2]}
        words |= {"SCALE": literal(self.op.scale, float32), "STORED": stored_type(dtype), "ROWS": f"rows[{_offset(rows, 'b')}]"}
        for name, array in (("NEW_KEY", k), ("NEW_VALUE", v), ("OLD_KEY", keys), ("OLD_VALUE", values)):
            words[name] = _offset(array, "b", "h", "c0")
            words[f"{name}_ROW"], words[f"{name}_ELEMENT"] = (f"{stride // array.itemsize}LL" for stride in array.strides[2:])
        words["Q"] = from_memory(f"q[{_offset(q, 'b', 'h', '(r0 + r)', 'e')}]", dtype)
        words["KEY"] = from_memory("key[c * key_row + e * key_element]", dtype)
        words["VALUE"] = from_memory("value[c * value_row + f * value_element]", dtype)
        words["Y"] = f"y[{_offset(y, 'b', 'h', 'row', 'f')}]"
        weighted = f"top[i] == {words['NEGATIVE']} ? {literal(math.nan, float32)} : sums[i][j] / total[i]"
        whole = f"{words['Y']} = {to_memory(weighted, dtype)};"
        words["TOP"] = "" if self.splits == 1 else "if (tx == 0) tops[2 * place] = top[i], tops[2 * place + 1] = total[i];"
        words["RESULT"] = whole if self.splits == 1 else f"parts[place * {f} + f] = sums[i][j];"
        words["COMBINED"] = to_memory("sum / total", dtype)
        return words


def _offset(array: Array, *index: str) -> str:
    """Return the C expression of the offset of an element; axes without an index have the index 0."""
    return " + ".join(f"{i} * {stride // array.itemsize}LL" for i, stride in zip(index, array.strides, strict=False))


@dataclass(frozen=True)
class CachedAttentionKernel:
    """An implementation by kernels printed for the sizes and strides of the arrays, without a value of [..., queries, keys]."""

    name: str = "printed cached attention"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        assert isinstance(op, CachedAttention)
        q, _, v = inputs[:3]
        if dtype_of(q.dtype) is not float32 and not dtype_of(q.dtype).is_half:
            return f"elements of type {q.dtype} are not float32, float16 or bfloat16"
        why = refused_arrays([*inputs, *outputs])
        if why is None and max(q.shape[3], v.shape[3]) > LARGEST:
            why = f"heads of {q.shape[3]} and {v.shape[3]} elements are longer than {LARGEST}"
        if why is None and CachedAttentionText(op, [*inputs, *outputs]).blocks >= MOST:
            why = f"{q.shape[0] * q.shape[1]} heads of {q.shape[2]} queries need too many blocks"
        return why

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        assert isinstance(op, CachedAttention)
        arrays, here = [*inputs, *outputs], compiler(int(outputs[0].device.id))
        printed = CachedAttentionText(op, placeholders(arrays))
        arrays += [device.scratch(shape, float32) for shape in printed.scratch_shapes()]
        module, pointers = here.module(printed.text()), addresses(placeholders(arrays))
        calls: list[Call] = [(KernelLaunch(module.function(NAME), arrays), ((printed.blocks,), (THREADS,), pointers))]
        if printed.splits > 1:
            blocks = min(-(-int(outputs[0].size) // THREADS), here.blocks)
            calls.append((KernelLaunch(module.function(f"{NAME}_combined"), arrays), ((blocks,), (THREADS,), pointers)))
        return calls


register(CachedAttention, "cuda", "nvrtc", CachedAttentionKernel())
