"""The C code of a cublasLt that computes nothing: it proposes one algorithm without workspace, and reports products by stream."""

from __future__ import annotations

#: file name of the library, and its version as cublasLtGetVersion returns it
NAME, VERSION = "libcublasLt.so.13", 130100
#: functions that create an object
CREATING = ("cublasLtCreate", "cublasLtMatmulDescCreate", "cublasLtMatrixLayoutCreate", "cublasLtMatmulPreferenceCreate")
#: functions that succeed and do nothing
NOTHING = (
    *("cublasLtDestroy", "cublasLtMatmulDescSetAttribute", "cublasLtMatmulDescDestroy", "cublasLtMatrixLayoutSetAttribute"),
    *("cublasLtMatrixLayoutDestroy", "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulPreferenceDestroy", "cublasLtMatmulAlgoCheck"),
)
#: bytes of a cublasLtMatmulHeuristicResult_t
RESULT = 96
_SOURCE = """
#include <stdint.h>
#include <string.h>
size_t cublasLtGetVersion(void) {{ return {version}; }}
/* called with the stream of a product */
int (*stub_product)(intptr_t);
int cublasLtMatmulAlgoGetHeuristic(void *h, void *p, void *a, void *b, void *c, void *d, void *preference, int most, char *results, int *count) {{
    memset(results, 0, {result});
    *count = 1;
    return 0;
}}
int cublasLtMatmulAlgoConfigGetAttribute(void *algorithm, int attribute, void *value, size_t size, size_t *written) {{
    memset(value, 0, size);
    *written = size;
    return 0;
}}
int cublasLtMatmul(void *h, void *p, void *alpha, void *a, void *al, void *b, void *bl, void *beta, void *c, void *cl, void *d, void *dl,
                   void *algorithm, void *workspace, size_t size, intptr_t stream) {{
    return stub_product(stream);
}}
"""


def source() -> str:
    """Return the C code of the library."""
    created = [f"int {name}(void **made) {{ *made = (void *)1; return 0; }}" for name in CREATING]
    return "\n".join([_SOURCE.format(version=VERSION, result=RESULT), *created, *(f"int {name}(void) {{ return 0; }}" for name in NOTHING), ""])
