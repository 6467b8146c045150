/* cublasLt on the host: checks what the real library checks, and computes every product in host memory.

   Structures, attributes and statuses have the values of cublasLt.h.  `stub_computes` = 0 only counts products. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 7, FAILED = 13, NOT_SUPPORTED = 15 };
enum { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 };
enum { BIAS = 4, GELU = 32, GELU_BIAS = 36, GELU_AUX = 160, GELU_AUX_BIAS = 164, DGELU = 192, DGELU_BGRAD = 208, BGRADA = 256, BGRADB = 512 };

typedef struct { int magic, compute, scale, transposed[2], epilogue, bias_type; char *bias, *aux; int64_t aux_leading; } Product;
typedef struct { int magic, type; uint64_t rows, columns; int64_t leading; int count; int64_t step; } Layout;
typedef struct { int magic; uint64_t workspace; uint32_t reductions, alignment[4]; } Preference;
typedef struct { uint64_t data[8]; } Algorithm;
typedef struct { Algorithm algorithm; size_t workspace; int state; float waves; int reserved[4]; } Result;

/* switches of tests: the version, 0 to count only, epilogues that have no algorithm, the status of the next product, a capture in progress */
long stub_version = 130100;
int stub_computes = 1, stub_refused_epilogue = 0, stub_status = 0, stub_capturing = 0;
/* counts: products, queries, descriptors that exist, and what the last query allowed */
long stub_products, stub_queries, stub_living;
unsigned stub_reductions;
char stub_error[256];

static int wrong(const char *what) { snprintf(stub_error, sizeof stub_error, "%s", what); return INVALID; }
static size_t size_of(int type) { return type == R_64F ? 8 : type == R_32F ? 4 : 2; }

static double half(uint16_t bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double value = exponent == 31 ? (mantissa ? NAN : INFINITY) : exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return bits >> 15 ? -value : value;
}
static uint16_t to_half(double value) {
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double size = fabs(value);
    if (isnan(value)) return 0x7e00;
    if (size >= 65520) return sign | 0x7c00;
    int exponent;
    frexp(size, &exponent);
    if (exponent < -13) exponent = -13; /* subnormal numbers have the spacing of the smallest normal ones */
    double units = nearbyint(ldexp(size, 11 - exponent));
    if (units < 1024) return sign | (uint16_t)units;
    return sign | (uint16_t)(units + ((exponent + 13) << 10));
}
static double loaded(const char *at, int64_t i, int type) {
    if (type == R_64F) return ((double *)at)[i];
    if (type == R_32F) return ((float *)at)[i];
    if (type == R_16F) return half(((uint16_t *)at)[i]);
    uint32_t bits = (uint32_t)((uint16_t *)at)[i] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static void store(char *at, int64_t i, int type, double value) {
    if (type == R_64F) { ((double *)at)[i] = value; return; }
    if (type == R_32F) { ((float *)at)[i] = (float)value; return; }
    if (type == R_16F) { ((uint16_t *)at)[i] = to_half(value); return; }
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, 4);
    ((uint16_t *)at)[i] = isnan(single) ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static double rounded_to_tf32(double value) {
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, 4);
    bits = (bits + 0x1000) & ~0x1fffu;
    memcpy(&single, &bits, 4);
    return single;
}
static double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
static double gelu_slope(double x) {
    double c = sqrt(2 / M_PI), t = tanh(c * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

/* ---------------------------------------------------------------- descriptors */

size_t cublasLtGetVersion(void) { return stub_version; }
int cublasLtCreate(void **handle) { *handle = (void *)0x17; return SUCCESS; }
int cublasLtDestroy(void *handle) { return handle == (void *)0x17 ? SUCCESS : INVALID; }

static void *made(size_t size, int magic) {
    int *item = calloc(1, size);
    item[0] = magic;
    stub_living++;
    return item;
}
static int destroyed(int *item, int magic) {
    if (!item || item[0] != magic) return wrong("destroyed a descriptor of another kind");
    item[0] = 0;
    free(item);
    stub_living--;
    return SUCCESS;
}
int cublasLtMatmulDescCreate(Product **product, int compute, int scale) {
    *product = made(sizeof(Product), 1);
    (*product)->compute = compute, (*product)->scale = scale, (*product)->epilogue = 1, (*product)->bias_type = -1;
    return SUCCESS;
}
int cublasLtMatmulDescDestroy(int *item) { return destroyed(item, 1); }
int cublasLtMatmulDescSetAttribute(Product *p, int name, const void *value, size_t size) {
    if (!p || p->magic != 1) return wrong("an attribute of no product");
    size_t expected = name == 8 || name == 11 || name == 12 ? 8 : 4;
    if (size != expected) return wrong("the size of an attribute of a product");
    switch (name) {
        case 3: case 4: memcpy(&p->transposed[name - 3], value, 4); return SUCCESS;
        case 7: memcpy(&p->epilogue, value, 4); return SUCCESS;
        case 8: memcpy(&p->bias, value, 8); return SUCCESS;
        case 11: memcpy(&p->aux, value, 8); return SUCCESS;
        case 12: memcpy(&p->aux_leading, value, 8); return SUCCESS;
        case 26: memcpy(&p->bias_type, value, 4); return SUCCESS;
    }
    return wrong("an unknown attribute of a product");
}
int cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    *layout = made(sizeof(Layout), 2);
    (*layout)->type = type, (*layout)->rows = rows, (*layout)->columns = columns, (*layout)->leading = leading, (*layout)->count = 1;
    return SUCCESS;
}
int cublasLtMatrixLayoutDestroy(int *item) { return destroyed(item, 2); }
int cublasLtMatrixLayoutSetAttribute(Layout *layout, int name, const void *value, size_t size) {
    if (!layout || layout->magic != 2) return wrong("an attribute of no layout");
    if (name == 5 && size == 4) { memcpy(&layout->count, value, 4); return SUCCESS; }
    if (name == 6 && size == 8) { memcpy(&layout->step, value, 8); return SUCCESS; }
    return wrong("an attribute of a layout");
}
int cublasLtMatmulPreferenceCreate(Preference **preference) {
    *preference = made(sizeof(Preference), 3);
    (*preference)->reductions = 7;
    for (int i = 0; i < 4; i++) (*preference)->alignment[i] = 256;
    return SUCCESS;
}
int cublasLtMatmulPreferenceDestroy(int *item) { return destroyed(item, 3); }
int cublasLtMatmulPreferenceSetAttribute(Preference *p, int name, const void *value, size_t size) {
    if (!p || p->magic != 3) return wrong("an attribute of no preference");
    if (name == 1 && size == 8) { memcpy(&p->workspace, value, 8); return SUCCESS; }
    if (name == 3 && size == 4) { memcpy(&p->reductions, value, 4); return SUCCESS; }
    if (name >= 5 && name <= 8 && size == 4) { memcpy(&p->alignment[name - 5], value, 4); return SUCCESS; }
    return wrong("an attribute of a preference");
}

/* ---------------------------------------------------------------- checks */

static int sums(int epilogue) { return epilogue == DGELU_BGRAD || epilogue == BGRADA || epilogue == BGRADB; }
static int has_aux(int epilogue) { return epilogue == GELU_AUX || epilogue == GELU_AUX_BIAS || epilogue == DGELU || epilogue == DGELU_BGRAD; }
static int has_bias(int epilogue) { return epilogue == BIAS || epilogue == GELU_BIAS || epilogue == GELU_AUX_BIAS || sums(epilogue); }

static int checked(Product *p, Layout *a, Layout *b, Layout *c, Layout *d) {
    if (!p || p->magic != 1 || !a || a->magic != 2 || !b || b->magic != 2 || !c || c->magic != 2 || !d || d->magic != 2)
        return wrong("a descriptor is missing");
    if (a->type != b->type || c->type != d->type) return wrong("types differ");
    int narrow = a->type == R_16F || a->type == R_16BF;
    if (d->type != a->type && !(narrow && d->type == R_32F)) return wrong("the type of the result");
    int wide = a->type == R_64F;
    int fast = p->compute == 77 && a->type == R_32F;
    if (!fast && p->compute != (wide ? 70 : 68)) return wrong("the type of the arithmetic");
    if (p->scale != (wide ? R_64F : R_32F)) return wrong("the type of the scalars");
    Layout *all[4] = {a, b, c, d};
    for (int i = 0; i < 4; i++) {
        if (!all[i]->rows || !all[i]->columns || all[i]->leading < (int64_t)all[i]->rows) return wrong("a leading dimension");
        if (all[i]->count != d->count) return wrong("the number of products");
    }
    uint64_t m = p->transposed[0] ? a->columns : a->rows, k = p->transposed[0] ? a->rows : a->columns;
    uint64_t n = p->transposed[1] ? b->rows : b->columns, other = p->transposed[1] ? b->columns : b->rows;
    if (k != other || d->rows != m || d->columns != n || c->rows != m || c->columns != n) return wrong("the sizes of the matrices");
    if (has_bias(p->epilogue) && (!p->bias || (p->bias_type != -1 && p->bias_type != d->type))) return wrong("the vector of the epilogue");
    if (!has_bias(p->epilogue) && p->bias) return wrong("a vector without an epilogue");
    if (has_aux(p->epilogue) && (!p->aux || p->aux_leading < (int64_t)m || p->aux_leading % 8 || (uintptr_t)p->aux % 16))
        return wrong("the matrix of the epilogue");
    if (p->epilogue != 1 && d->count > 1) return wrong("an epilogue of several products");
    return SUCCESS;
}

/* an algorithm: a mark, its number, splits of k, reduction scheme */
static const uint64_t MARK = 0xa160;

int cublasLtMatmulAlgoGetHeuristic(void *handle, Product *p, Layout *a, Layout *b, Layout *c, Layout *d, Preference *preference, int most, Result *results, int *count) {
    stub_queries++;
    if (stub_capturing) return FAILED;
    if (handle != (void *)0x17 || !preference || preference->magic != 3) return wrong("the handle or the preference");
    int status = checked(p, a, b, c, d);
    if (status) return status;
    stub_reductions = preference->reductions;
    *count = 0;
    if (stub_refused_epilogue && p->epilogue == stub_refused_epilogue) return NOT_SUPPORTED;
    for (int number = 0; number < 3 && number < most; number++) {
        int scheme = number == 1 ? 2 : 0; /* the second one splits k, and sums in the type of the arithmetic */
        if (scheme && !(preference->reductions & scheme)) continue;
        Result *result = &results[(*count)++];
        memset(result, 0, sizeof *result);
        uint64_t data[4] = {MARK, number, scheme ? 4 : 1, scheme};
        memcpy(result->algorithm.data, data, sizeof data);
        result->workspace = scheme ? 1 << 20 : 0;
        result->waves = 1;
    }
    return SUCCESS;
}
int cublasLtMatmulAlgoCheck(void *handle, Product *p, Layout *a, Layout *b, Layout *c, Layout *d, Algorithm *algorithm, Result *result) {
    int status = checked(p, a, b, c, d);
    return handle != (void *)0x17 || algorithm->data[0] != MARK ? INVALID : status;
}
int cublasLtMatmulAlgoConfigGetAttribute(Algorithm *algorithm, int name, void *value, size_t size, size_t *written) {
    if (algorithm->data[0] != MARK || size != 4 || (name != 2 && name != 3)) return wrong("an attribute of an algorithm");
    uint32_t number = algorithm->data[name];
    memcpy(value, &number, 4);
    *written = 4;
    return SUCCESS;
}

/* ---------------------------------------------------------------- products */

static double element(const char *at, Layout *layout, int transposed, int64_t i, int64_t j, int64_t product) {
    return loaded(at, product * layout->step + (transposed ? j + i * layout->leading : i + j * layout->leading), layout->type);
}

int cublasLtMatmul(void *handle, Product *p, const void *alpha, const char *a, Layout *la, const char *b, Layout *lb, const void *beta, const char *c, Layout *lc, char *d, Layout *ld, Algorithm *algorithm, void *workspace, size_t bytes, void *stream) {
    if (handle != (void *)0x17) return wrong("the handle");
    if (stub_status) return stub_status;
    int status = checked(p, la, lb, lc, ld);
    if (status) return status;
    if (!algorithm || algorithm->data[0] != MARK) return wrong("no algorithm");
    if ((uintptr_t)workspace % 256 || !workspace || bytes < (algorithm->data[3] ? 1 << 20 : 0)) return wrong("the workspace");
    stub_products++;
    if (!stub_computes) return SUCCESS;
    int wide = la->type == R_64F, fast = p->compute == 77, sum = sums(p->epilogue);
    double by = wide ? *(double *)alpha : *(float *)alpha, times = wide ? *(double *)beta : *(float *)beta;
    int64_t m = ld->rows, n = ld->columns, k = p->transposed[0] ? la->rows : la->columns;
    double *totals = calloc(m > n ? m : n, sizeof(double));
    for (int64_t product = 0; product < ld->count; product++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < m; i++) {
                double value = 0;
                for (int64_t q = 0; q < k; q++) {
                    double x = element(a, la, p->transposed[0], i, q, product), y = element(b, lb, p->transposed[1], q, j, product);
                    value += fast ? rounded_to_tf32(x) * rounded_to_tf32(y) : x * y;
                    if (p->epilogue == BGRADA && !j) totals[i] += x;
                    if (p->epilogue == BGRADB && !i) totals[j] += y;
                }
                value *= by;
                if (times != 0) value += times * loaded(c, product * lc->step + i + j * lc->leading, lc->type);
                if (has_bias(p->epilogue) && !sum) value += loaded(p->bias, i, ld->type);
                int64_t at = i + j * p->aux_leading;
                if (p->epilogue == GELU_AUX || p->epilogue == GELU_AUX_BIAS) store(p->aux, at, ld->type, value);
                if (p->epilogue == DGELU || p->epilogue == DGELU_BGRAD) value *= gelu_slope(loaded(p->aux, at, ld->type));
                else if (p->epilogue & GELU) value = gelu(value);
                if (p->epilogue == DGELU_BGRAD) totals[i] += value;
                store(d, product * ld->step + i + j * ld->leading, ld->type, value);
            }
    for (int64_t i = 0; sum && i < (p->epilogue == BGRADB ? n : m); i++) store(p->bias, i, ld->type, totals[i]);
    free(totals);
    return SUCCESS;
}
