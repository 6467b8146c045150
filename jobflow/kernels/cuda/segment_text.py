"""Texts of the kernels that sum rows with equal indices: a radix sort, and a sum per segment.

    keys     2 0 2 1          the segment of each entry
    order    1 3 0 2          the entries, sorted by segment; equal segments keep their order
    bounds   0 1 2 4          the first sorted entry of each segment

A pass of the stable sort orders four bits.  A block sorts a tile of 2,048 entries.  `digit_counts` counts the digits of each tile, `digit_offsets`
adds up the counts, and `digit_moves` moves the entries.  If all entries fit one tile, `tile_sort` runs all passes in shared memory.  The sums of a
segment are added in the order of its entries, as in a loop over the entries.  Equal inputs therefore give equal bits on every GPU.  There are no
atomic additions.
"""

from __future__ import annotations

from jobflow.core.types import DType
from jobflow.kernels.cuda.kernel_text import THREADS, with_functions
from jobflow.kernels.cuda.primitives import from_memory, stored_type, to_memory, value_type

#: bits ordered by one pass of the sort, and the values of a digit
BITS = 4
DIGITS = 1 << BITS
#: entries of a tile, and entries that a thread of its block handles
TILE = 2048
ITEMS = TILE // THREADS
#: kernels of the sort, whose blocks have a tile each
BY_TILES = ("tile_sort", "digit_counts", "digit_offsets", "digit_moves")
#: rows that are read before they are added
AHEAD = 8

_RANKS = f"""// the number of entries with a smaller digit, or with the same digit and an earlier thread, for each (digit, thread) of a tile
static __device__ void ranks(const int *keys, int count, int shift, int *before) {{
  static __shared__ int sums[{THREADS}];
  const int t = threadIdx.x, first = blockIdx.x * {TILE} + t * {ITEMS};
  for (int digit = 0; digit < {DIGITS}; ++digit) before[digit * {THREADS} + t] = 0;
  for (int i = first; i < first + {ITEMS} && i < count; ++i) before[(keys[i] >> shift & {DIGITS - 1}) * {THREADS} + t] += 1;
  __syncthreads();
  int total = 0;
  for (int k = t * {DIGITS}; k < (t + 1) * {DIGITS}; ++k) total += before[k];
  sums[t] = total;
  __syncthreads();
  for (int far = 1; far < {THREADS}; far *= 2) {{
    const int other = t >= far ? sums[t - far] : 0;
    __syncthreads();
    sums[t] += other;
    __syncthreads();
  }}
  int running = sums[t] - total;
  for (int k = t * {DIGITS}; k < (t + 1) * {DIGITS}; ++k) {{
    const int mine = before[k];
    before[k] = running;
    running += mine;
  }}
  __syncthreads();
}}"""

_COUNTS = f"""extern "C" __global__ void __launch_bounds__({THREADS}) digit_counts(
    const int *keys, int *totals, int count, int shift) {{
  static __shared__ int before[{DIGITS * THREADS}];
  ranks(keys, count, shift, before);
  const int digit = threadIdx.x, size = min(count - (int)blockIdx.x * {TILE}, {TILE});
  if (digit < {DIGITS}) {{
    const int end = digit + 1 < {DIGITS} ? before[(digit + 1) * {THREADS}] : size;
    totals[digit * gridDim.x + blockIdx.x] = end - before[digit * {THREADS}];
  }}
}}"""

_OFFSETS = f"""extern "C" __global__ void __launch_bounds__({THREADS}) digit_offsets(int *totals, int count) {{
  static __shared__ int sums[{THREADS}];
  const int t = threadIdx.x, each = (count + {THREADS - 1}) / {THREADS};
  int total = 0;
  for (int k = t * each; k < (t + 1) * each && k < count; ++k) total += totals[k];
  sums[t] = total;
  __syncthreads();
  for (int far = 1; far < {THREADS}; far *= 2) {{
    const int other = t >= far ? sums[t - far] : 0;
    __syncthreads();
    sums[t] += other;
    __syncthreads();
  }}
  int running = sums[t] - total;
  for (int k = t * each; k < (t + 1) * each && k < count; ++k) {{
    const int mine = totals[k];
    totals[k] = running;
    running += mine;
  }}
}}"""

_MOVES = f"""extern "C" __global__ void __launch_bounds__({THREADS}) digit_moves(
    const int *keys, const int *order, const int *totals, int *new_keys, int *new_order, int count, int shift, int first_pass) {{
  static __shared__ int before[{DIGITS * THREADS}];
  static __shared__ int starts[{DIGITS}];
  ranks(keys, count, shift, before);
  const int t = threadIdx.x, first = blockIdx.x * {TILE} + t * {ITEMS};
  if (t < {DIGITS}) starts[t] = totals[t * gridDim.x + blockIdx.x] - before[t * {THREADS}];
  __syncthreads();
  for (int i = first; i < first + {ITEMS} && i < count; ++i) {{
    const int digit = keys[i] >> shift & {DIGITS - 1};
    const int to = starts[digit] + before[digit * {THREADS} + t];
    before[digit * {THREADS} + t] += 1;
    new_keys[to] = keys[i];
    new_order[to] = first_pass ? i : order[i];
  }}
}}"""

_TILE_SORT = f"""extern "C" __global__ void __launch_bounds__({THREADS}) tile_sort(
    const int *keys, int *new_keys, int *new_order, int count, int bits) {{
  static __shared__ int before[{DIGITS * THREADS}];
  static __shared__ int tile_keys[{TILE}], tile_order[{TILE}];
  const int t = threadIdx.x, first = t * {ITEMS}, mine = min(max(count - first, 0), {ITEMS});
  if (blockIdx.x) return;
  for (int k = 0; k < mine; ++k) {{
    tile_keys[first + k] = keys[first + k];
    tile_order[first + k] = first + k;
  }}
  for (int shift = 0; shift < bits; shift += {BITS}) {{
    int key[{ITEMS}], entry[{ITEMS}];
    ranks(tile_keys, count, shift, before);
    for (int k = 0; k < mine; ++k) {{
      key[k] = tile_keys[first + k];
      entry[k] = tile_order[first + k];
    }}
    __syncthreads();
    for (int k = 0; k < mine; ++k) {{
      const int place = (key[k] >> shift & {DIGITS - 1}) * {THREADS} + t, to = before[place];
      before[place] = to + 1;
      tile_keys[to] = key[k];
      tile_order[to] = entry[k];
    }}
    __syncthreads();
  }}
  for (int k = 0; k < mine; ++k) {{
    new_keys[first + k] = tile_keys[first + k];
    new_order[first + k] = tile_order[first + k];
  }}
}}"""

_BOUNDS = f"""extern "C" __global__ void __launch_bounds__({THREADS}) segment_bounds(const int *keys, int *bounds, int count, int segments) {{
  for (int s = blockIdx.x * {THREADS} + threadIdx.x; s <= segments; s += gridDim.x * {THREADS}) {{
    int low = 0, high = count;
    while (low < high) {{
      const int middle = low + (high - low) / 2;
      if (keys[middle] < s) low = middle + 1;
      else high = middle;
    }}
    bounds[s] = low;
  }}
}}"""


def print_sort() -> str:
    """Return the text of the kernels that sort entries by their segments, and find the bounds of the segments."""
    return "\n\n".join([_RANKS, _COUNTS, _OFFSETS, _MOVES, _TILE_SORT, _BOUNDS]) + "\n"


def print_segments(dtype: DType, together: str = "sum", vector: int = 1, wide: bool = False) -> str:
    """Return the text of the kernel `segment_sums`, which combines the entries of each segment; `together` is a key of TOGETHER.

    data[outer,entries,inner] and y[outer,segments,inner] are dense.  A sum starts at 0, the other results at x, of the shape of y.  A thread adds
    `vector` adjacent columns, which only sums can be.  Indices of data and y have 64 bits if `wide`.
    """
    value, stored, total = value_type(dtype), stored_type(dtype), _total_type(dtype, together)
    index, elements = "long long" if wide else "unsigned int", f"Vector<{stored}, {vector}>"
    first = "0" if together == "sum" else from_memory("x[i]", dtype)
    joined = TOGETHER[together].format(total=total)
    each = f"""#pragma unroll
        for (int v = 0; v < {vector}; ++v) {{
          {total} &all = totals[v];
          const {total} one = ({total})({from_memory("row.at[v]", dtype)});
          all = {joined};
        }}"""
    one_column = vector == 1  # of a byte or more, unlike vectors
    read = "{{column[order[{}] * width]}}" if one_column else f"loaded<{vector}>(column + order[{{}}] * width)"
    body = f"""extern "C" __global__ void __launch_bounds__({THREADS}) segment_sums(
    const {stored} *data, const {stored} *x, const int *order, const int *bounds, {stored} *y,
    long long outer, long long entries, long long segments, long long inner) {{
  const {index} width = inner, vectors = inner / {vector}, lines = segments, count = outer * segments * vectors;
  for ({index} i = blockIdx.x * ({index}){THREADS} + threadIdx.x; i < count; i += gridDim.x * ({index}){THREADS}) {{
    const {index} rest = i / vectors, b = (i - rest * vectors) * {vector}, part = rest / lines, s = rest - part * lines;
    const {stored} *column = data + part * ({index})entries * width + b;
    {total} totals[{vector}];
#pragma unroll
    for (int v = 0; v < {vector}; ++v) totals[v] = ({total})({first});
    int j = bounds[s];
    const int end = bounds[s + 1];
    for (; j + {AHEAD} <= end; j += {AHEAD}) {{
      {elements} rows[{AHEAD}];
#pragma unroll
      for (int k = 0; k < {AHEAD}; ++k) rows[k] = {read.format("j + k")};
#pragma unroll
      for (int k = 0; k < {AHEAD}; ++k) {{
        const {elements} row = rows[k];
{each}
      }}
    }}
    for (; j < end; ++j) {{
        const {elements} row = {read.format("j")};
{each}
    }}
    {elements} result;
#pragma unroll
    for (int v = 0; v < {vector}; ++v) result.at[v] = {to_memory(f"({value})totals[v]", dtype)};
    {"y[i] = result.at[0]" if one_column else f"stored(y + i * {vector}, result)"};
  }}
}}"""
    return with_functions(body) + "\n"


#: C text of the combination of the result so far, `all`, with the next entry, `one`
TOGETHER = {
    "sum": "all + one",
    "multiply": "all * one",
    "maximum": "larger<{total}>(all, one)",
    "minimum": "smaller<{total}>(all, one)",
    "last": "one",
}


def _total_type(dtype: DType, together: str) -> str:
    """Return the C type of a result; sums and products of integers wrap around."""
    if dtype.is_float:
        return value_type(dtype)
    return "unsigned long long" if together in ("sum", "multiply") else "long long"
