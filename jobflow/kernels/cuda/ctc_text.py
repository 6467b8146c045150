"""Texts of kernels for connectionist temporal classification: the recursions of `ops.ctc` over frames, their gradient, and the greedy decoder.

    recursions   a block per sample: its threads compute the states of a frame, and wait for each other before the next frame
    classes      a warp per frame of a sample: the gradient of each class from the paths through its states
    best         a warp per frame of a sample: the most likely class
    decoded      a block per sample: the classes without blanks, at positions that a running sum counts

For the gradient, other blocks compute the forward and the backward recursion of a sample at the same time.  Further blocks link equal labels, so that
one thread adds up the states of a class in their order.  Equal inputs give equal bits.  Sizes and strides are arguments.

The scores of a thread's first state are read one frame ahead, because the recursion would wait for memory in every frame.  A label outside of the
classes, and a length larger than the number of labels, are results of NaN; NumPy raises IndexError.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.core.types import DType
from jobflow.kernels.cuda.kernel_text import THREADS, with_functions
from jobflow.kernels.cuda.primitives import from_memory, stored_type, to_memory, value_type

NAME = "ctc"
#: threads and warps of a block that computes rows
LANES, WARPS = 32, THREADS // 32

#: parameters of all kernels that read the inputs of the loss, in the order of `ctc_kernels`
_INPUTS = """const {x} *x, const {ids} *targets, const {lengths} *frames, const {labels} *labels,
    long long steps, long long count, long long classes, long long longest, long long blank,
    long long x_t, long long x_n, long long x_c, long long targets_n, long long targets_k, long long frames_n, long long labels_n"""

_SAMPLE = """// a sample: its scores, and the states blank, label, blank, label ... blank
struct Sample {{
  const {x} *x;
  const {ids} *ids;
  long long x_t, x_c, step, classes, blank, states, labels, frames;
  __device__ long long mark(long long s) const {{ return s & 1 && s / 2 < labels ? (long long)ids[s / 2 * step] : blank; }}
  __device__ bool jumps(long long s) const {{ return s > 1 && s < states && mark(s) != mark(s - 2); }}
  // the class of a state, -1 for a label that is no class, -2 for a state behind the labels
  __device__ long long column(long long s) const {{
    if (s >= states || s > 2 * labels) return -2;
    const long long label = mark(s), from_end = label + classes;
    return label >= 0 ? (label < classes ? label : -1) : from_end >= 0 ? from_end : -1;
  }}
  __device__ double at(long long t, long long c) const {{ return (double){read}; }}
  __device__ double score(long long t, long long column) const {{
    return column >= 0 ? at(t, column) : __longlong_as_double(column == -1 ? 0x7ff8000000000000LL : 0xfff0000000000000LL);
  }}
}};

// log(e^a + e^b)
static __device__ double together(double a, double b) {{
  const double gap = a - b;
  return a == b ? a + 0.6931471805599453 : gap > 0 ? a + log1p(exp(-gap)) : gap <= 0 ? b + log1p(exp(gap)) : gap;
}}
"""

#: the sample n; more labels than there are count as one more, so that products do not overflow
_OF_N = """    const long long frames_of_n = (long long)frames[n * frames_n], labels_of_n = (long long)labels[n * labels_n];
    const Sample a = {x + n * x_n, targets + n * targets_n, x_t, x_c, targets_k, classes, blank, 2 * longest + 1,
                      min(max(labels_of_n, -1LL), longest + 1), min(max(frames_of_n, 0LL), steps)};"""

_FORWARD = """// alpha of a frame in each row of memory, which is used again after `rows` rows; returns the last row
static __device__ const double *forward(const Sample &a, double *alpha, long long rows, int threads{parameters}) {{
  const double none = __longlong_as_double(0xfff0000000000000LL);
  const long long first = threadIdx.x, column = a.column(first);
  const bool jumps = a.jumps(first);
  const double *before = alpha;
  double *now = alpha, ahead = a.frames ? a.score(0, column) : none;
  for (long long t = 0; t < a.frames; ++t) {{
    const double score = ahead;
    if (t + 1 < a.frames) ahead = a.score(t + 1, column);
    for (long long s = first; s < a.states; s += threads) {{
      double value = s == first ? score : a.score(t, a.column(s));
      if (t) {{
        const double jump = (s == first ? jumps : a.jumps(s)) ? before[s - 2] : none;
        value = together(together(before[s], s ? before[s - 1] : none), jump) + value;
      }} else if (s > 1) {{
        value = none;
      }}
      now[s] = value;{store}
    }}
    __syncthreads();
    before = now;
    now = now + a.states == alpha + rows * a.states ? alpha : now + a.states;
  }}
  return before;
}}
"""

_LOSS = """// the negated logarithm of the probability of all paths
static __device__ double loss_of(const Sample &a, const double *last) {
  const double infinity = __longlong_as_double(0x7ff0000000000000LL);
  if (a.frames == 0) return a.labels == 0 ? 0.0 : infinity;
  if (2 * a.labels >= a.states) return __longlong_as_double(0x7ff8000000000000LL);
  if (a.labels < 0) return infinity;
  return -together(last[2 * a.labels], a.labels > 0 ? last[2 * a.labels - 1] : -infinity);
}
"""

_BACKWARD = """// beta of each frame; `after` are two rows of beta and score
static __device__ void backward(const Sample &a, bool ends, double *beta, double *after, int threads) {
  const double none = __longlong_as_double(0xfff0000000000000LL);
  const long long first = threadIdx.x, column = a.column(first);
  const bool jumps = a.jumps(first + 2);
  const double *next = after;
  double *now = after, ahead = a.frames ? a.score(a.frames - 1, column) : none;
  for (long long t = a.frames - 1; t >= 0; --t) {
    const double score = ahead;
    if (t) ahead = a.score(t - 1, column);
    for (long long s = first; s < a.states; s += threads) {
      double value = ends && (s == 2 * a.labels || s == 2 * a.labels - 1) ? 0.0 : none;
      if (t + 1 < a.frames) {
        const double jump = (s == first ? jumps : a.jumps(s + 2)) ? next[s + 2] : none;
        value = together(together(next[s], s + 1 < a.states ? next[s + 1] : none), jump);
      }
      beta[t * a.states + s] = value;
      now[s] = value + (s == first ? score : a.score(t, a.column(s)));
    }
    __syncthreads();
    next = now;
    now = now == after ? after + a.states : after;
  }
}

// for each label, the next label of its class or -1, and 1 if there is an earlier one
static __device__ void link(const Sample &a, long long *links, int threads) {
  const long long count = min(a.labels, a.states / 2);
  for (long long k = threadIdx.x; k < count; k += threads) links[2 * k + 1] = 0;
  __syncthreads();
  for (long long k = threadIdx.x; k < count; k += threads) {
    const long long column = a.column(2 * k + 1);
    long long next = k + 1;
    while (next < count && a.column(2 * next + 1) != column) ++next;
    links[2 * k] = next < count ? next : -1;
    if (next < count) links[2 * next + 1] = 1;
  }
}
"""

_RECURSION_OF = {
    "loss": """      const double *last = forward(a, alpha + n * 2 * a.states, 2, threads);
      const double loss = loss_of(a, last);
      if (threadIdx.x == 0) y[n * y_n] = {zeroed};""",
    "paths": """      forward(a, alpha + n * 2 * a.states, 2, threads, y + n * y_n, y_t, y_s);
      for (long long k = threadIdx.x; k < (steps - a.frames) * a.states; k += threads) {{
        const long long t = k / a.states;
        y[n * y_n + (a.frames + t) * y_t + (k - t * a.states) * y_s] = {none};
      }}""",
    "gradient": """      if (at < count) {{
        const double *last = forward(a, alpha + n * steps * a.states, steps, threads);
        const double loss = loss_of(a, last);
        if (threadIdx.x == 0) losses[n] = loss;
      }} else if (at < 2 * count) {{
        backward(a, frames_of_n <= steps, beta + n * steps * a.states, after + n * 2 * a.states, threads);
      }} else {{
        link(a, links + n * 2 * longest, threads);
      }}""",
}
_OUTPUTS_OF = {
    "loss": "double *alpha, {y} *y, long long y_n, int zero_infinity, int threads",
    "paths": "double *alpha, {y} *y, long long y_n, long long y_t, long long y_s, int threads",
    "gradient": "double *alpha, double *beta, double *after, double *losses, long long *links, int threads",
}


def _types(dtypes: Sequence[DType]) -> dict[str, str]:
    """Return the C types of x, targets, frames and labels, and the text of an element of x."""
    names = dict(zip(("x", "ids", "lengths", "labels"), map(stored_type, dtypes), strict=True))
    return names | {"read": from_memory("x[t * x_t + c * x_c]", dtypes[0])}


def print_recursions(dtypes: Sequence[DType], kind: str, name: str = NAME) -> str:
    """Print the kernel `<name>_recursions` of the "loss", the "paths" or the "gradient" for the element types of x, targets, frames and labels."""
    types, stored = _types(dtypes), stored_type(dtypes[0])
    parameters, store = "", ""
    if kind == "paths":
        parameters = f", {stored} *y, long long y_t, long long y_s"
        store = f"\n      y[t * y_t + s * y_s] = {_out('value', dtypes[0])};"
    head = [_SAMPLE.format(**types), _FORWARD.format(parameters=parameters, store=store)]
    head += {"loss": [_LOSS], "paths": [], "gradient": [_LOSS, _BACKWARD]}[kind]
    zeroed = _out("(zero_infinity && fabs(loss) == __longlong_as_double(0x7ff0000000000000LL) ? 0.0 : loss)", dtypes[0])
    none = _out("__longlong_as_double(0xfff0000000000000LL)", dtypes[0])
    body = f"""extern "C" __global__ void __launch_bounds__({THREADS}) {name}_recursions(
    {_INPUTS.format(**types)},
    {_OUTPUTS_OF[kind].format(y=stored)}) {{
  for (long long at = blockIdx.x; at < {"3 * count" if kind == "gradient" else "count"}; at += gridDim.x) {{
    const long long n = at % count;
{_OF_N}
{_RECURSION_OF[kind].format(zeroed=zeroed, none=none)}
  }}
}}
"""
    return with_functions("\n".join([*head, body]))


def print_classes(dtypes: Sequence[DType], name: str = NAME) -> str:
    """Print the kernel `<name>_classes`, which computes the gradient from alpha, beta and the losses."""
    types, dtype = _types(dtypes), dtypes[0]
    stored = stored_type(dtype)
    body = f"""extern "C" __global__ void __launch_bounds__({THREADS}) {name}_classes(
    {_INPUTS.format(**types)},
    const double *alpha, const double *beta, const double *losses, const long long *links, const {stored} *dloss, {stored} *dx,
    long long dloss_n, long long dx_t, long long dx_n, long long dx_c, int zero_infinity) {{
  const double infinity = __longlong_as_double(0x7ff0000000000000LL), nan = __longlong_as_double(0x7ff8000000000000LL);
  const int lane = threadIdx.x;
  for (long long first = blockIdx.x * {WARPS}LL; first < steps * count; first += gridDim.x * {WARPS}LL) {{
    const bool mine = first + threadIdx.y < steps * count;
    const long long row = mine ? first + threadIdx.y : first, t = row / count, n = row - t * count;
{_OF_N}
    const double loss = losses[n], slope = (double){from_memory("dloss[n * dloss_n]", dtype)};
    const bool finite = fabs(loss) != infinity, inside = t < a.frames;
    {stored} *y = dx + t * dx_t + n * dx_n;
    if (mine)
      for (long long c = lane; c < classes; c += {LANES}) {{
        const double value = !inside ? 0.0 : finite ? exp(a.at(t, c)) * slope : zero_infinity ? 0.0 : nan;
        y[c * dx_c] = {_out("value", dtype)};
      }}
    __syncthreads();  // classes of states are written again
    const bool reached = mine && inside && finite;
    const double *before = alpha + (n * steps + t) * a.states, *after = beta + (n * steps + t) * a.states;
    const long long *link = links + n * 2 * longest;
    double blanks = 0.0;
    for (long long s = lane; reached && s < a.states; s += {LANES}) {{
      const long long column = a.column(s);
      if (column == blank) {{
        blanks += exp(before[s] + after[s] + loss);
      }} else if (column >= 0 && link[s / 2 * 2 + 1] == 0) {{
        double share = 0.0;
        for (long long k = s / 2; k >= 0; k = link[2 * k]) share += exp(before[2 * k + 1] + after[2 * k + 1] + loss);
        y[column * dx_c] = {_out("((exp(a.at(t, column)) - share) * slope)", dtype)};
      }}
    }}
    for (int far = {LANES // 2}; far > 0; far /= 2) blanks += __shfl_xor_sync(0xffffffffu, blanks, far);
    if (reached && lane == 0) y[blank * dx_c] = {_out("((exp(a.at(t, blank)) - blanks) * slope)", dtype)};
    __syncthreads();
  }}
}}
"""
    return with_functions("\n".join([_SAMPLE.format(**types), body]))


def print_decoder(x: DType, lengths: DType, name: str = NAME) -> str:
    """Print the kernels `<name>_best` and `<name>_decoded` of the greedy decoder for these element types of x and of the lengths."""
    value, stored, ids = value_type(x), stored_type(x), stored_type(lengths)
    body = f"""// True if (a, i) is a larger element than (b, j), or an equal one before it; NaN is the largest, and a negative index marks no element
static __device__ bool exceeds({value} a, long long i, {value} b, long long j) {{
  if (i < 0 || j < 0) return i >= 0;
  const bool a_nan = a != a, b_nan = b != b;
  if (a_nan || b_nan) return a_nan && (!b_nan || i < j);
  return a > b || (a == b && i < j);
}}

extern "C" __global__ void __launch_bounds__({THREADS}) {name}_best(
    const {stored} *x, long long *best, double *largest,
    long long steps, long long count, long long classes, long long x_t, long long x_n, long long x_c) {{
  for (long long first = blockIdx.x * {WARPS}LL; first < steps * count; first += gridDim.x * {WARPS}LL) {{
    const bool mine = first + threadIdx.y < steps * count;
    const long long row = mine ? first + threadIdx.y : first, t = row / count, n = row - t * count;
    {value} value = 0;
    long long at = -1;
    for (long long c = threadIdx.x; c < classes; c += {LANES}) {{
      const {value} other = {from_memory("x[t * x_t + n * x_n + c * x_c]", x)};
      if (exceeds(other, c, value, at)) {{
        value = other;
        at = c;
      }}
    }}
    for (int far = {LANES // 2}; far > 0; far /= 2) {{
      const {value} other = __shfl_xor_sync(0xffffffffu, value, far);
      const long long c = __shfl_xor_sync(0xffffffffu, at, far);
      if (exceeds(other, c, value, at)) {{
        value = other;
        at = c;
      }}
    }}
    if (mine && threadIdx.x == 0) {{
      best[n * steps + t] = at;
      largest[n * steps + t] = (double)value;
    }}
  }}
}}

extern "C" __global__ void __launch_bounds__({THREADS}) {name}_decoded(
    const long long *best, const double *largest, const {ids} *lengths, {ids} *decoded, {stored} *total,
    long long steps, long long count, long long classes, long long lengths_n, long long decoded_n, long long decoded_t, long long total_n,
    int merge_repeated) {{
  static __shared__ int counts[{THREADS}];
  static __shared__ double sums[{THREADS}];
  const int thread = threadIdx.x;
  for (long long n = blockIdx.x; n < count; n += gridDim.x) {{
    const long long frames = min((long long)lengths[n * lengths_n], steps), *classes_of_n = best + n * steps;
    long long end = 0;
    double sum = 0.0;
    for (long long first = 0; first < frames; first += {THREADS}) {{
      const long long t = first + thread, c = t < frames ? classes_of_n[t] : classes - 1;
      const bool emitted = c != classes - 1 && !(merge_repeated && t && c == classes_of_n[t - 1]);
      if (t < frames) sum += largest[n * steps + t];
      counts[thread] = emitted;
      __syncthreads();
      for (int far = 1; far < {THREADS}; far *= 2) {{
        const int other = thread >= far ? counts[thread - far] : 0;
        __syncthreads();
        counts[thread] += other;
        __syncthreads();
      }}
      if (emitted) decoded[n * decoded_n + (end + counts[thread] - 1) * decoded_t] = ({ids})c;
      end += counts[{THREADS - 1}];
      __syncthreads();
    }}
    for (long long t = end + thread; t < steps; t += {THREADS}) decoded[n * decoded_n + t * decoded_t] = 0;
    sums[thread] = sum;
    __syncthreads();
    for (int far = {THREADS // 2}; far > 0; far /= 2) {{
      if (thread < far) sums[thread] += sums[thread + far];
      __syncthreads();
    }}
    if (thread == 0) total[n * total_n] = {_out("(-sums[0])", x)};
    __syncthreads();
  }}
}}
"""
    return with_functions(body)


def _out(text: str, dtype: DType) -> str:
    """Return the text of a float64 value as an element in memory."""
    return to_memory(f"({value_type(dtype)}){text}", dtype)
