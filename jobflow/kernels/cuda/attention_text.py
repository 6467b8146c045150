"""CUDA kernels of attention: tiles of the weights in shared memory, by the online softmax (Milakov and Gimelshein 2018, Dao et al. 2022).

Forward, a block has BM queries of one head and iterates over tiles of BN keys.  Rows keep their maximum and sum; a tile with a larger maximum
scales the sums before it.  Backward, weights are computed again from the logarithm of a row's sum.  Three kernels return the gradients:

    delta       sum of dy y, one number per query
    keys        a block has BN keys of one group, iterates over queries of its heads, and adds up dk and dv
    queries     a block has BM queries, iterates over keys, and adds up dq

No value is added by two blocks, so equal inputs give equal bits.  A block has 16 x 16 threads: thread (ty, tx) has the rows ty, ty + 16 ... and
the columns tx, tx + 16 ... of each tile, so 16 lanes of a warp share a row.  Sizes and strides are constants of the text.  Values are float32;
half-precision results are rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, bool_, dtype_of, float32
from jobflow.expressions.philox import MASK, MULTIPLIERS, WEYL, key_of
from jobflow.kernels.cuda.kernel_text import with_functions
from jobflow.kernels.cuda.primitives import from_memory, literal, stored_type, to_memory
from jobflow.ops.attention import Attention, AttentionBase

#: threads along one axis of a tile
SIDE = 16
THREADS = SIDE * SIDE
#: bytes of shared memory of a block that need no request
SHARED = 48 << 10
#: queries and keys of a tile, the best first
TILES = ((64, 64), (64, 32), (32, 32), (32, 16), (16, 16))
#: largest size of a head
LARGEST = 128
#: exp(x) is 0 in float32 for smaller x
UNDERFLOW = -110.0


def unrolled(text: str) -> str:
    """Unroll the loops over the elements of a thread, which are in registers."""
    for count in ("RM", "CN", "EM", "FM"):
        for index in "ij":
            loop = f"for (int {index} = 0; {index} < ${count};"
            text = text.replace(loop, f'_Pragma("unroll") {loop}')
    return text


_RANDOM = Template("""static __device__ unsigned int random_word(long long element, unsigned long long stream) {
  const unsigned long long lane = element / 64 * 16 + element % 16;
  unsigned int a = (unsigned int)lane, b = (unsigned int)(lane >> 32), c = (unsigned int)stream, d = (unsigned int)(stream >> 32) << 8;
  unsigned int first = ${FIRST}U, second = ${SECOND}U;
  for (int round = 0; round < 10; ++round) {
    const unsigned long long x = (unsigned long long)a * ${M0}ULL, y = (unsigned long long)c * ${M1}ULL;
    a = (unsigned int)(y >> 32) ^ b ^ first, b = (unsigned int)y, c = (unsigned int)(x >> 32) ^ d ^ second, d = (unsigned int)x;
    first += ${W0}U, second += ${W1}U;
  }
  const int word = (int)(element % 64 / 16);
  return word == 0 ? a : word == 1 ? b : word == 2 ? c : d;
}
static __device__ float kept(long long element, unsigned long long stream) {
  return random_word(element, stream) >= ${THRESHOLD}U ? ${FACTOR} : 0.0f;
}""")

SUM_OF_ROW = """static __device__ float sum_of_row(float x) {  // of the 16 lanes of a row, in a fixed order
  for (int half = 8; half > 0; half /= 2) x = x + __shfl_xor_sync(0xffffffff, x, half);
  return x;
}
static __device__ float largest_of_row(float x) {
  for (int half = 8; half > 0; half /= 2) x = larger<float>(x, __shfl_xor_sync(0xffffffff, x, half));
  return x;
}"""

FORWARD = Template(
    unrolled("""
  static __shared__ float q_tile[$BM * $EP], key_tile[$BN * $XP], weights[$BM * $NP];$FLAG
  const int t = threadIdx.x, tx = t % $SIDE, ty = t / $SIDE, r0 = (int)(blockIdx.x % $ROW_TILES) * $BM;
  $HEAD
  for (int i = t; i < $BM * $E; i += $THREADS) {
    const int r = i / $E, e = i % $E;
    q_tile[r * $EP + e] = r0 + r < $L ? $Q : 0.0f;
  }
  float sums[$RM][$FM] = {}, top[$RM], total[$RM] = {};
  for (int i = 0; i < $RM; ++i) top[i] = $NEGATIVE;
  for (int c0 = 0; c0 < $S; c0 += $BN) {
    $END_FORWARD
    __syncthreads();
    for (int i = t; i < $BN * $E; i += $THREADS) {
      const int c = i / $E, e = i % $E;
      key_tile[c * $XP + e] = c0 + c < $S ? $K : 0.0f;
    }
    __syncthreads();
    float score[$RM][$CN] = {};
    for (int e = 0; e < $E; ++e)
      for (int i = 0; i < $RM; ++i)
        for (int j = 0; j < $CN; ++j)
          score[i][j] = fmaf(q_tile[(ty + $SIDE * i) * $EP + e], key_tile[(tx + $SIDE * j) * $XP + e], score[i][j]);
    for (int i = 0; i < $RM; ++i) {
      const int r = ty + $SIDE * i, row = r0 + r;
      float most = $NEGATIVE;
      for (int j = 0; j < $CN; ++j) {
        const int column = c0 + tx + $SIDE * j;
        float x = score[i][j] * $SCALE;
        $SCORE
        score[i][j] = column < $S ? x : $NEGATIVE;
        most = larger<float>(most, score[i][j]);
      }
      most = larger<float>(top[i], largest_of_row(most));
      const float base = most == $NEGATIVE ? 0.0f : most, before = expf(top[i] - base);
      float part = 0.0f;
      for (int j = 0; j < $CN; ++j) {
        const int column = c0 + tx + $SIDE * j;
        const float p = column < $S ? expf(score[i][j] - base) : 0.0f;
        part = part + p;
        weights[r * $NP + tx + $SIDE * j] = p$KEPT;
      }
      total[i] = total[i] * before + sum_of_row(part);
      for (int j = 0; j < $FM; ++j) sums[i][j] = sums[i][j] * before;
      top[i] = most;
    }
    __syncthreads();
    for (int i = t; i < $BN * $F; i += $THREADS) {
      const int c = i / $F, f = i % $F;
      key_tile[c * $XP + f] = c0 + c < $S ? $V : 0.0f;
    }
    __syncthreads();
    for (int n = 0; n < $BN; ++n)
      for (int i = 0; i < $RM; ++i)
        for (int j = 0; j < $FM; ++j)
          sums[i][j] = fmaf(weights[(ty + $SIDE * i) * $NP + n], key_tile[n * $XP + $FJ], sums[i][j]);
  }
  for (int i = 0; i < $RM; ++i) {
    const int row = r0 + ty + $SIDE * i;
    if (row >= $L) continue;
    const float sum = $TOTAL;
    if (tx == 0) $LSE = (top[i] == $NEGATIVE ? 0.0f : top[i]) + logf(sum);
    for (int j = 0; j < $FM; ++j) {
      const int f = tx + $SIDE * j;
      if (f < $F) $Y = $RESULT_Y;
    }
  }
""")
)

_DELTA = Template(
    unrolled("""
  const int tx = threadIdx.x % $SIDE, row = (int)(blockIdx.x % $DELTA_TILES) * $SIDE + threadIdx.x / $SIDE;
  $HEAD_OF_DELTA
  float sum = 0.0f;
  for (int f = tx; f < $F && row < $L; f += $SIDE) sum = fmaf($DY, $Y, sum);
  sum = sum_of_row(sum);
  if (tx == 0 && row < $L) delta[head * $L + row] = sum;
""")
)

#: scores and gradients of the weights in a tile; `each` receives p, dp and the position
_AGAIN = Template(
    unrolled("""
    float score[$RM][$CN] = {}, dweight[$RM][$CN] = {};
    for (int e = 0; e < $E; ++e)
      for (int i = 0; i < $RM; ++i)
        for (int j = 0; j < $CN; ++j)
          score[i][j] = fmaf(q_tile[(ty + $SIDE * i) * $EP + e], k_tile[(tx + $SIDE * j) * $EP + e], score[i][j]);
    for (int f = 0; f < $F; ++f)
      for (int i = 0; i < $RM; ++i)
        for (int j = 0; j < $CN; ++j)
          dweight[i][j] = fmaf(dy_tile[(ty + $SIDE * i) * $FP + f], v_tile[(tx + $SIDE * j) * $FP + f], dweight[i][j]);
    for (int i = 0; i < $RM; ++i) {
      const int r = ty + $SIDE * i, row = r0 + r;
      for (int j = 0; j < $CN; ++j) {
        const int column = c0 + tx + $SIDE * j;
        float p = 0.0f, ds = 0.0f, keep = 1.0f;
        if (row < $L && column < $S) {
          float x = score[i][j] * $SCALE;
          $SCORE
          p = expf(x - $LSE);
          $KEEP
          ds = $VISIBLE ? p * (dweight[i][j] * keep - delta[head * $L + row]) * $SCALE : 0.0f;
        }
        $STORED
      }
    }
    __syncthreads();
""")
)

_LOAD_QUERIES = Template(
    unrolled("""
    for (int i = t; i < $BM * $E; i += $THREADS) {
      const int r = i / $E, e = i % $E;
      q_tile[r * $EP + e] = r0 + r < $L ? $Q : 0.0f;
    }
    for (int i = t; i < $BM * $F; i += $THREADS) {
      const int r = i / $F, f = i % $F;
      dy_tile[r * $FP + f] = r0 + r < $L ? $DY_OF_TILE : 0.0f;
    }
""")
)

_LOAD_KEYS = Template(
    unrolled("""
    for (int i = t; i < $BN * $E; i += $THREADS) {
      const int c = i / $E, e = i % $E;
      k_tile[c * $EP + e] = c0 + c < $S ? $K : 0.0f;
    }
    for (int i = t; i < $BN * $F; i += $THREADS) {
      const int c = i / $F, f = i % $F;
      v_tile[c * $FP + f] = c0 + c < $S ? $V : 0.0f;
    }
""")
)

_KEYS = Template(
    unrolled("""
  static __shared__ float q_tile[$BM * $EP], dy_tile[$BM * $FP], k_tile[$BN * $EP], v_tile[$BN * $FP], weights[$BM * $NP], dscores[$BM * $NP];$FLAG
  const int t = threadIdx.x, tx = t % $SIDE, ty = t / $SIDE, c0 = (int)(blockIdx.x % $COLUMN_TILES) * $BN;
  $GROUP
  $LOAD_KEYS
  float dk_sums[$CN][$EM] = {}, dv_sums[$CN][$FM] = {};
  for (int of_group = 0; of_group < $HEADS_OF_GROUP; ++of_group) {
    $HEAD_OF_GROUP
    for (int r0 = $FIRST_ROW; r0 < $L; r0 += $BM) {
      __syncthreads();
      $SKIP_QUERIES
      $LOAD_QUERIES
      __syncthreads();
      $AGAIN
      for (int r = 0; r < $BM; ++r)
        for (int i = 0; i < $CN; ++i) {
          const int n = ty + $SIDE * i;
          for (int j = 0; j < $FM; ++j) dv_sums[i][j] = fmaf(weights[r * $NP + n], dy_tile[r * $FP + $FJ], dv_sums[i][j]);
          for (int j = 0; j < $EM; ++j) dk_sums[i][j] = fmaf(dscores[r * $NP + n], q_tile[r * $EP + $EJ], dk_sums[i][j]);
        }
    }
  }
  for (int i = 0; i < $CN; ++i) {
    const int column = c0 + ty + $SIDE * i;
    if (column >= $S) continue;
    for (int j = 0; j < $EM; ++j) {
      const int e = tx + $SIDE * j;
      if (e < $E) $DK = $RESULT_K;
    }
    for (int j = 0; j < $FM; ++j) {
      const int f = tx + $SIDE * j;
      if (f < $F) $DV = $RESULT_V;
    }
  }
""")
)

_QUERIES = Template(
    unrolled("""
  static __shared__ float q_tile[$BM * $EP], dy_tile[$BM * $FP], k_tile[$BN * $EP], v_tile[$BN * $FP], dscores[$BM * $NP];
  const int t = threadIdx.x, tx = t % $SIDE, ty = t / $SIDE, r0 = (int)(blockIdx.x % $ROW_TILES) * $BM;
  $HEAD
  $LOAD_QUERIES
  float dq_sums[$RM][$EM] = {};
  for (int c0 = 0; c0 < $S; c0 += $BN) {
    $END_QUERIES
    __syncthreads();
    $LOAD_KEYS
    __syncthreads();
    $AGAIN
    for (int n = 0; n < $BN; ++n)
      for (int i = 0; i < $RM; ++i)
        for (int j = 0; j < $EM; ++j)
          dq_sums[i][j] = fmaf(dscores[(ty + $SIDE * i) * $NP + n], k_tile[n * $EP + $EJ], dq_sums[i][j]);
  }
  for (int i = 0; i < $RM; ++i) {
    const int row = r0 + ty + $SIDE * i;
    if (row >= $L) continue;
    for (int j = 0; j < $EM; ++j) {
      const int e = tx + $SIDE * j;
      if (e < $E) $DQ = $RESULT_Q;
    }
  }
""")
)


BACKWARD = {
    "delta": _DELTA,
    "keys": Template(_KEYS.template.replace("$AGAIN", "$AGAIN_KEYS")),
    "queries": Template(_QUERIES.template.replace("$AGAIN", "$AGAIN_QUERIES")),
}


@dataclass(frozen=True)
class AttentionLaunch:
    """The name of a kernel and the number of its blocks."""

    name: str
    blocks: int


def forward_tile(e: int, f: int) -> tuple[int, int]:
    """Return the numbers of queries and keys of a tile whose arrays fit into shared memory."""
    return next((m, n) for m, n in TILES if 4 * (m * (e | 1) + n * (max(e, f) | 1) + m * (n | 1) + 1) <= SHARED)


def backward_tile(e: int, f: int) -> tuple[int, int]:
    return next((m, n) for m, n in TILES if 4 * ((m + n) * ((e | 1) + (f | 1)) + 2 * m * (n | 1) + 1) <= SHARED)


def thread_column(size: int) -> str:
    """Return the C expression of a thread's column j, limited to a tile whose width is not a multiple of SIDE."""
    return f"tx + {SIDE} * j" if size % SIDE == 0 else f"min(tx + {SIDE} * j, {size - 1})"


class AttentionText:
    """The kernels of one operation for arrays with given layouts: the inputs and outputs of `Attention` or `AttentionGrad`."""

    def __init__(self, op: AttentionBase, arrays: Sequence[Array], name: str) -> None:
        self.op, self.name = op, name
        self.is_forward = isinstance(op, Attention)
        names = ["q", "k", "v", *([] if self.is_forward else ["y", "lse", "dy"])]
        names += ["mask"] * op.has_mask + ["rows", "counter"] * (op.rate > 0) + (["y", "lse"] if self.is_forward else ["dq", "dk", "dv"])
        self.arrays = dict(zip(names, arrays, strict=True))
        self.inputs = len(names) - (2 if self.is_forward else 3)
        q, k, v = (self.arrays[each] for each in "qkv")
        self.dtype = dtype_of(q.dtype)
        *self.lead, self.heads, self.queries, self.e = q.shape
        self.groups, self.keys, self.f = k.shape[-3], k.shape[-2], v.shape[-1]
        self.tile = (forward_tile if self.is_forward else backward_tile)(self.e, self.f)
        self.batch = math.prod(self.lead)

    def launches(self) -> list[AttentionLaunch]:
        """Return the kernels in order; those without blocks are omitted."""
        (m, n), every = self.tile, self.batch * self.heads
        rows, columns = -(-self.queries // m), -(-self.keys // n)
        if self.is_forward:
            all_launches = [AttentionLaunch(self.name, every * rows)]
        else:
            all_launches = [
                AttentionLaunch(f"{self.name}_delta", every * -(-self.queries // SIDE)),
                AttentionLaunch(f"{self.name}_keys", self.batch * self.groups * columns),
                AttentionLaunch(f"{self.name}_queries", every * rows),
            ]
        return [launch for launch in all_launches if launch.blocks]

    def text(self) -> str:
        """Print all kernels; the parameters of each are the pointers of inputs and outputs, then `delta` for gradients."""
        words = self._words()
        bodies = {self.name: FORWARD} if self.is_forward else {f"{self.name}_{part}": body for part, body in BACKWARD.items()}
        texts = [f"{self._head(name)} {{{body.substitute(words)}}}\n" for name, body in bodies.items()]
        body = "\n\n".join([SUM_OF_ROW, *([self._random()] if self.op.rate else []), *texts])
        return with_functions(body)

    def _head(self, name: str) -> str:
        pointers = [f"{'const ' if i < self.inputs else ''}{self._stored(each)} *__restrict__ {each}" for i, each in enumerate(self.arrays)]
        pointers += [] if self.is_forward else ["float *__restrict__ delta"]
        return f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}(\n    {", ".join(pointers)})'

    def _stored(self, name: str) -> str:
        return stored_type(dtype_of(self.arrays[name].dtype))

    def _random(self) -> str:
        (first, second), rate = key_of(self.op.seed, self.op.key), self.op.rate
        threshold = min(round(rate * 2.0**32), MASK)
        factor = literal(1.0 / (1.0 - rate), float32)
        constants = dict(zip(("M0", "M1", "W0", "W1"), (*MULTIPLIERS, *WEYL), strict=True))
        return _RANDOM.substitute(FIRST=first, SECOND=second, THRESHOLD=threshold, FACTOR=factor, **constants)

    # ---------------------------------------------------------------- elements

    def _element(self, name: str, *last: str, batch: Sequence[str] = ()) -> str:
        """Return the C expression of an element: `last` are the indices of the axes after the heads, broadcast axes have stride 0."""
        array = self.arrays[name]
        size = array.dtype.itemsize
        head = "group" if name in ("k", "v", "dk", "dv") else "h"
        index = [*(f"b{axis}" for axis in range(len(self.lead))), head, *last][-array.ndim :]
        strides = [0 if n == 1 else stride // size for n, stride in zip(array.shape, array.strides, strict=True)]
        return f"{name}[{' + '.join(f'{i} * {stride}LL' for i, stride in zip(index, strides, strict=True)) or '0'}]"

    def _value(self, name: str, *last: str) -> str:
        return from_memory(self._element(name, *last), dtype_of(self.arrays[name].dtype))

    def _index(self, number: str, count: int, name: str) -> str:
        """Return the statements that find the leading axes and the head `name` of the flat index `number`."""
        lines = [f"long long rest = {number};", f"const long long {name} = rest % {count}; rest /= {count};"]
        lines += [f"const long long b{axis} = rest % {n}; rest /= {n};" for axis, n in reversed(list(enumerate(self.lead)))]
        return " ".join(lines)

    # ---------------------------------------------------------------- parts of the texts

    def _words(self) -> Mapping[str, Any]:
        (m, n), e, f = self.tile, self.e, self.f
        rows, columns = max(-(-self.queries // m), 1), max(-(-self.keys // n), 1)
        pads = {"EP": e | 1, "FP": f | 1, "XP": max(e, f) | 1, "NP": n | 1}
        counts = {"RM": m // SIDE, "CN": n // SIDE, "EM": -(-e // SIDE), "FM": -(-f // SIDE)}
        sizes = {"BM": m, "BN": n, "E": e, "F": f, "L": self.queries, "S": self.keys, "SIDE": SIDE, "THREADS": THREADS}
        words: dict[str, Any] = {**pads, **counts, **sizes, "NEGATIVE": literal(-math.inf, float32)}
        words |= {"ROW_TILES": rows, "COLUMN_TILES": columns, "SCALE": literal(self.op.scale, float32), "SCORE": self._score()}
        words |= {"EJ": thread_column(e), "FJ": thread_column(f)}
        words["FLAG"] = "\n  static __shared__ int more;" if self._fills else ""
        words |= {"Q": self._value("q", "(r0 + r)", "e"), "K": self._value("k", "(c0 + c)", "e"), "V": self._value("v", "(c0 + c)", "f")}
        group = f"const long long group = h / {self.heads // self.groups};"
        words["HEAD"] = f"{self._index(f'blockIdx.x / {rows}', self.heads, 'h')} {group} const long long head = blockIdx.x / {rows};"
        return words | (self._forward_words() if self.is_forward else self._backward_words(words))

    @property
    def _fills(self) -> bool:
        """True if keys beyond the diagonal may have a weight."""
        return self.op.diagonal is not None and self.op.fill != -math.inf

    def _is_hidden(self) -> str:
        return "false" if self.op.diagonal is None else f"column - row > {self.op.diagonal}"

    def _score(self) -> str:
        """Return the statements that hide keys in the score x."""
        lines = [] if self.op.diagonal is None else [f"if ({self._is_hidden()}) x = {literal(self.op.fill, float32)};"]
        if self.op.has_mask:
            element, negative = self._element("mask", "row", "column"), literal(-math.inf, float32)
            bounded = f"row < {self.queries} && column < {self.keys}"
            if dtype_of(self.arrays["mask"].dtype) is bool_:
                lines.append(f"if ({bounded} && !{element}) x = {negative};")
            else:
                lines.append(f"if ({bounded}) x = x + {from_memory(element, self.dtype)};")
        return " ".join(lines)

    def _keep(self) -> str:
        element = f"{self._element('rows', 'row')} + column + {self.op.first_key}"
        return f"kept({element}, (unsigned long long)counter[0])"

    def _end(self) -> str:
        """Return the statement that ends the loop over keys behind the last visible one."""
        if self.op.diagonal is None:
            return ""
        return f"if (c0 > min(r0 + {self.tile[0]}, {self.queries}) - 1 + {self.op.diagonal}) break;"

    def _forward_words(self) -> dict[str, Any]:
        dropout = f" * (row < {self.queries} && column < {self.keys} ? {self._keep()} : 0.0f)" if self.op.rate else ""
        negative, nan = literal(-math.inf, float32), literal(math.nan, float32)
        total = "larger<float>(total[i], 1.0f)" if self.op.masked else f"top[i] == {negative} ? {nan} : total[i]"
        end = self._end()
        if self._fills and not self.op.has_mask:
            beyond, fill = end.removesuffix("break;"), literal(self.op.fill, float32)
            test = f"if (r0 + ty + {SIDE} * i < {self.queries} && !({fill} - top[i] <= {literal(UNDERFLOW, float32)})) more = 1;"
            flag = "__syncthreads(); if (t == 0) more = 0; __syncthreads();"
            end = f"{beyond}{{ {flag} for (int i = 0; i < {self.tile[0] // SIDE}; ++i) {test} __syncthreads(); if (!more) break; }}"
        elif self._fills:
            end = ""
        return {
            "KEPT": dropout,
            "TOTAL": total,
            "END_FORWARD": end,
            "LSE": self._element("lse", "row"),
            "Y": self._element("y", "row", "f"),
            "RESULT_Y": to_memory("sums[i][j] / sum", self.dtype),
        }

    def _backward_words(self, words: Mapping[str, Any]) -> dict[str, Any]:
        op, m = self.op, self.tile[0]
        each, tiles = self.heads // self.groups, max(-(-self.queries // SIDE), 1)
        own: dict[str, Any] = {
            "LSE": self._element("lse", "row"),
            "DY": self._value("dy", "row", "f"),
            "Y": self._value("y", "row", "f"),
            "DY_OF_TILE": self._value("dy", "(r0 + r)", "f"),
            "KEEP": f"keep = {self._keep()};" if op.rate else "",
            "VISIBLE": f"!({self._is_hidden()})",
            "DELTA_TILES": tiles,
            "HEAD_OF_DELTA": f"{self._index(f'blockIdx.x / {tiles}', self.heads, 'h')} const long long head = blockIdx.x / {tiles};",
            "GROUP": self._index(f"blockIdx.x / {words['COLUMN_TILES']}", self.groups, "group"),
            "HEADS_OF_GROUP": each,
            "HEAD_OF_GROUP": f"const long long h = group * {each} + of_group, "
            f"head = blockIdx.x / {words['COLUMN_TILES']} / {self.groups} * {self.heads} + h;",
            "FIRST_ROW": "0",
            "SKIP_QUERIES": "",
            "END_QUERIES": self._end(),
        }
        own |= {"DQ": self._element("dq", "row", "e"), "DK": self._element("dk", "column", "e"), "DV": self._element("dv", "column", "f")}
        own |= {f"RESULT_{x.upper()}": to_memory(f"d{x}_sums[i][j]", self.dtype) for x in "qkv"}
        # queries without visible keys are NaN unless they are masked, and NaN times their gradient is part of dv
        if op.diagonal is not None and not self._fills and (op.masked or op.diagonal >= 0):
            own["FIRST_ROW"] = f"max(c0 - ({op.diagonal}), 0) / {m} * {m}"
        elif self._fills and not op.has_mask:
            fill, beyond = literal(op.fill, float32), f"c0 > min(r0 + {m}, {self.queries}) - 1 + {op.diagonal}"
            lse = self._element("lse", "(r0 + t)")
            test = f"if (t < {m} && r0 + t < {self.queries} && !({fill} - {lse} <= {literal(UNDERFLOW, float32)})) more = 1;"
            own["SKIP_QUERIES"] = f"if ({beyond}) {{ if (t == 0) more = 0; __syncthreads(); {test} __syncthreads(); if (!more) continue; }}"
        known = {**words, **own}
        own["LOAD_QUERIES"], own["LOAD_KEYS"] = _LOAD_QUERIES.substitute(known), _LOAD_KEYS.substitute(known)
        index = f"r * {words['NP']} + tx + {SIDE} * j"
        for part, stored in (("keys", f"weights[{index}] = p * keep; dscores[{index}] = ds;"), ("queries", f"dscores[{index}] = ds;")):
            own[f"AGAIN_{part.upper()}"] = _AGAIN.substitute({**known, "STORED": stored})
        return own
