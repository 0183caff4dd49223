#include "host_cublaslt.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

#define WORKSPACE_ALIGN 256u
#define SPOILT_BYTES    4096u /* at either end of the workspace */

struct cublasLtContext {
    uint32_t unused;
};

/* What the opaque structs hold. */
struct layout {
    uint64_t type, extent[2]; /* of a column, of columns */
    int64_t stride, batch_stride;
    int32_t batch;
};
struct operation {
    uint64_t is_transposed; /* a */
};
struct preference {
    uint64_t workspace_bytes;
    uint32_t align[4]; /* of a, b, c, d */
};

/* An algorithm is what it was chosen for. */
struct algorithm {
    uint64_t shape; /* a hash of the layouts */
    uint64_t workspace_bytes;
    uint32_t align[4];
};
_Static_assert(sizeof(struct layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "it fits");
_Static_assert(sizeof(struct algorithm) <= sizeof(cublasLtMatmulAlgo_t), "it fits");

struct product {
    struct layout a, b, d;
    const bf16 *a_values, *b_values;
    float *d_values;
    void *workspace;
    size_t workspace_bytes;
    struct product *next; /* of those captured, which are done again and again */
    bool is_captured;
};

static struct host_cublaslt_counts counts;
static struct product *captured; /* as long as the process */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t calls_left;
static cublasStatus_t ordered;

void host_cublaslt_fail(uint32_t calls, cublasStatus_t status) {
    calls_left = calls;
    ordered = status;
}

struct host_cublaslt_counts host_cublaslt_counted(void) {
    return counts;
}

/* Every call begins here. */
static cublasStatus_t enter(uint32_t *count) {
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    pthread_mutex_lock(&lock);
    if (ordered != CUBLAS_STATUS_SUCCESS && calls_left-- == 0) {
        status = ordered;
        ordered = CUBLAS_STATUS_SUCCESS;
    }
    if (status == CUBLAS_STATUS_SUCCESS && count) (*count)++;
    pthread_mutex_unlock(&lock);
    return status;
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_EXECUTION_FAILED";
    }
}

size_t cublasLtGetVersion(void) {
    return 130000;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle_out) {
    cublasStatus_t status = enter(&counts.made);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    *handle_out = calloc(1, sizeof **handle_out);
    KERNEL_CHECK(*handle_out != NULL);
    return status;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    free(handle);
    return enter(&counts.destroyed);
}

/* ============================== descriptions ================================================== */

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType_t type,
                                        uint64_t rows, uint64_t columns, int64_t stride) {
    memset(layout, 0, sizeof *layout);
    *(struct layout *)layout = (struct layout){
        .type = type, .extent = {rows, columns}, .stride = stride, .batch = 1};
    return enter(NULL);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes) {
    struct layout *to = (struct layout *)layout;
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == sizeof to->batch)
        memcpy(&to->batch, value, bytes);
    else if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET &&
             bytes == sizeof to->batch_stride)
        memcpy(&to->batch_stride, value, bytes);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return enter(NULL);
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t operation, cublasComputeType_t compute,
                                      cudaDataType_t scale) {
    memset(operation, 0, sizeof *operation);
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
    return enter(NULL);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    cublasOperation_t transposed;
    if (attribute != CUBLASLT_MATMUL_DESC_TRANSA || bytes != sizeof transposed)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&transposed, value, bytes);
    ((struct operation *)operation)->is_transposed = transposed == CUBLAS_OP_T;
    return enter(NULL);
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
    memset(preference, 0, sizeof *preference);
    *(struct preference *)preference = (struct preference){0, {256, 256, 256, 256}};
    return enter(NULL);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes) {
    struct preference *to = (struct preference *)preference;
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES &&
        bytes == sizeof to->workspace_bytes)
        memcpy(&to->workspace_bytes, value, bytes);
    else if (attribute >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
             attribute <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES && bytes == sizeof(uint32_t))
        memcpy(&to->align[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return enter(NULL);
}

static uint64_t hash_of(const cublasLtMatrixLayoutOpaque_t *const layout[4]) {
    uint64_t hash = 0;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t word = 0; word < sizeof *layout[i] / sizeof(uint64_t); word++)
            hash = (hash ^ layout[i]->data[word]) * 0x100000001b3u + 1;
    return hash;
}

/* D^T [n, rows] = a^T [k, n] and b [k, rows], of one batch count. */
static bool is_product(const struct operation *operation, const struct layout *a,
                       const struct layout *b, const struct layout *d) {
    return operation->is_transposed && a->type == CUDA_R_16BF && b->type == CUDA_R_16BF &&
           d->type == CUDA_R_32F && a->extent[0] == b->extent[0] && a->extent[1] == d->extent[0] &&
           b->extent[1] == d->extent[1] && a->batch == d->batch && b->batch == d->batch &&
           (int64_t)a->extent[0] <= a->stride && (int64_t)b->extent[0] <= b->stride &&
           (int64_t)d->extent[0] <= d->stride;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results,
                                              int *found_out) {
    const cublasLtMatrixLayoutOpaque_t *const layouts[] = {a, b, c, d};
    const struct preference *told = (const struct preference *)preference;
    struct algorithm algorithm = {hash_of(layouts), told->workspace_bytes, {0}};
    (void)handle;
    cublasStatus_t status = enter(&counts.chosen);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    *found_out = 0;
    if (wanted < 1 || !is_product((struct operation *)operation, (struct layout *)a,
                                  (struct layout *)b, (struct layout *)d))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(algorithm.align, told->align, sizeof algorithm.align);
    memset(results, 0, sizeof *results);
    memcpy(&results->algo, &algorithm, sizeof algorithm);
    results->workspaceSize = told->workspace_bytes;
    *found_out = 1;
    return status;
}

/* ============================== products ====================================================== */

static float dot(const bf16 *a, const bf16 *b, uint64_t count) {
    float sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += bf16_to_f32(a[i]) * bf16_to_f32(b[i]);
    return sum;
}

static void multiply(void *user) {
    struct product *product = user;
    const struct layout *a = &product->a, *b = &product->b, *d = &product->d;
    memset(product->workspace, 0xff, SPOILT_BYTES);
    memset((char *)product->workspace + product->workspace_bytes - SPOILT_BYTES, 0xff,
           SPOILT_BYTES);
    for (int64_t batch = 0; batch < d->batch; batch++)
        for (int64_t row = 0; row < (int64_t)d->extent[1]; row++)
            for (int64_t n = 0; n < (int64_t)d->extent[0]; n++)
                product->d_values[batch * d->batch_stride + row * d->stride + n] = dot(
                    product->a_values + batch * a->batch_stride + n * a->stride,
                    product->b_values + batch * b->batch_stride + row * b->stride, a->extent[0]);
    if (!product->is_captured) free(product);
}

static void keep(struct product *product) {
    pthread_mutex_lock(&lock);
    product->next = captured;
    captured = product;
    pthread_mutex_unlock(&lock);
}

/* At once where there is no stream. */
static bool tell(cudaStream_t stream, struct product *product) {
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (!stream) {
        multiply(product);
        return true;
    }
    if (cudaStreamIsCapturing(stream, &capture) == cudaSuccess) {
        product->is_captured = capture == cudaStreamCaptureStatusActive;
        if (cudaLaunchHostFunc(stream, multiply, product) == cudaSuccess) {
            if (product->is_captured) keep(product);
            return true;
        }
    }
    free(product);
    return false;
}

static bool is_aligned(const void *address, uint32_t bytes) {
    return (uintptr_t)address % bytes == 0;
}

static bool strides_are_aligned(const struct layout *layout, uint32_t bytes) {
    int64_t element = layout->type == CUDA_R_32F ? (int64_t)sizeof(float) : (int64_t)sizeof(bf16);
    return layout->stride * element % bytes == 0 &&
           (layout->batch == 1 || layout->batch_stride * element % bytes == 0);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void *alpha, const void *a_values, cublasLtMatrixLayout_t a,
                              const void *b_values, cublasLtMatrixLayout_t b, const void *beta,
                              const void *c_values, cublasLtMatrixLayout_t c, void *d_values,
                              cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algorithm,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream) {
    const cublasLtMatrixLayoutOpaque_t *const layouts[] = {a, b, c, d};
    const struct layout *const of[] = {(struct layout *)a, (struct layout *)b, (struct layout *)c,
                                       (struct layout *)d};
    const void *const values[] = {a_values, b_values, c_values, d_values};
    struct algorithm chosen;
    (void)handle;
    cublasStatus_t status = enter(&counts.products);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    memcpy(&chosen, algorithm, sizeof chosen);
    bool is_good = chosen.shape == hash_of(layouts) && workspace_bytes == chosen.workspace_bytes &&
                   is_aligned(workspace, WORKSPACE_ALIGN) && *(const float *)alpha == 1 &&
                   *(const float *)beta == 0 &&
                   is_product((struct operation *)operation, of[0], of[1], of[3]);
    for (uint32_t i = 0; i < 4; i++)
        is_good = is_good && is_aligned(values[i], chosen.align[i]) &&
                  strides_are_aligned(of[i], chosen.align[i]);
    if (!is_good) return CUBLAS_STATUS_INVALID_VALUE;

    struct product *product = malloc(sizeof *product);
    KERNEL_CHECK(product != NULL);
    *product = (struct product){*of[0],   *of[1],    *of[3],          a_values, b_values,
                                d_values, workspace, workspace_bytes, NULL,     false};
    return tell(stream, product) ? status : CUBLAS_STATUS_EXECUTION_FAILED;
}
