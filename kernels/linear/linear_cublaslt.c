#include "linear/linear_cublaslt.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHOICES 256u /* that are kept; of two shapes with one place the last */

/* What an algorithm depends on: no bytes between its fields. */
struct key {
    struct linear_cublaslt_shape shape;
    uint64_t y_align; /* bytes */
};

struct choice {
    struct key key; /* of no rows: none yet */
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes;
};

struct linear_cublaslt {
    cublasLtHandle_t handle;
    struct choice choice[CHOICES];
};

/* The library stores matrices by columns, and we by rows: so it is told of the transposed ones,
 * y^T [n, rows] = w x^T, of which w is transposed once more. */
struct product {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t w, x, y;
};

const char *linear_cublaslt_open(struct linear_cublaslt **library_out) {
    struct linear_cublaslt *library = calloc(1, sizeof *library);
    *library_out = NULL;
    if (!library) return "no memory";
    cublasStatus_t status = cublasLtCreate(&library->handle);
    if (status == CUBLAS_STATUS_SUCCESS) {
        *library_out = library;
        return NULL;
    }
    free(library);
    return cublasLtGetStatusString(status);
}

void linear_cublaslt_close(struct linear_cublaslt **library) {
    if (!*library) return;
    (void)cublasLtDestroy((*library)->handle); /* a dead device has nothing to give back */
    free(*library);
    *library = NULL;
}

static void check(cublasStatus_t status, const struct linear_cublaslt_shape *shape) {
    char text[256];
    if (status == CUBLAS_STATUS_SUCCESS) return;
    snprintf(text, sizeof text, "cuBLASLt, %u x %u rows of %u to %u: %s", shape->batch, shape->rows,
             shape->k, shape->n, cublasLtGetStatusString(status));
    kernel_check_failed(text, __FILE__, __LINE__);
}

static cublasStatus_t describe_matrix(cublasLtMatrixLayout_t layout, cudaDataType_t type,
                                      const uint32_t extent[2], size_t stride, uint32_t batch,
                                      size_t batch_stride) {
    int32_t count = (int32_t)batch;
    int64_t apart = (int64_t)batch_stride;
    cublasStatus_t status = cublasLtMatrixLayoutInit(layout, type, extent[0], extent[1],
                                                     (int64_t)stride);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                  &count, sizeof count);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutSetAttribute(
            layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &apart, sizeof apart);
    return status;
}

static cublasStatus_t describe(struct product *product, const struct linear_cublaslt_shape *shape) {
    const uint32_t of_w[] = {shape->k, shape->n}, of_x[] = {shape->k, shape->rows};
    const uint32_t of_y[] = {shape->n, shape->rows};
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasStatus_t status = cublasLtMatmulDescInit(&product->operation, CUBLAS_COMPUTE_32F,
                                                   CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulDescSetAttribute(&product->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                                &transposed, sizeof transposed);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_matrix(&product->w, CUDA_R_16BF, of_w, shape->w_stride, shape->batch,
                                 shape->w_batch_stride);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_matrix(&product->x, CUDA_R_16BF, of_x, shape->x_stride, shape->batch,
                                 shape->x_batch_stride);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_matrix(&product->y, CUDA_R_32F, of_y, shape->y_stride, shape->batch,
                                 shape->y_batch_stride);
    return status;
}

/* It assumes addresses of 256 bytes where it is not told. */
static cublasStatus_t prefer(cublasLtMatmulPreference_t preference, uint64_t y_align) {
    const uint64_t workspace_bytes = LINEAR_CUBLASLT_WORKSPACE_BYTES - LINEAR_CUBLASLT_ALIGN;
    const uint32_t unit_bytes = LINEAR_CUBLASLT_UNIT * sizeof(bf16), y_bytes = (uint32_t)y_align;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &unit_bytes, sizeof unit_bytes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &unit_bytes, sizeof unit_bytes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &y_bytes, sizeof y_bytes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &y_bytes, sizeof y_bytes},
    };
    cublasStatus_t status = cublasLtMatmulPreferenceInit(preference);
    for (size_t i = 0;
         i < sizeof attributes / sizeof attributes[0] && status == CUBLAS_STATUS_SUCCESS; i++)
        status = cublasLtMatmulPreferenceSetAttribute(preference, attributes[i].name,
                                                      attributes[i].value, attributes[i].bytes);
    return status;
}

static cublasStatus_t choose(struct linear_cublaslt *library, struct product *product,
                             const struct key *key, struct choice *choice) {
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    cublasStatus_t status = prefer(&preference, key->y_align);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulAlgoGetHeuristic(library->handle, &product->operation, &product->w,
                                                &product->x, &product->y, &product->y, &preference,
                                                1, &result, &found);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = found == 1 ? result.state : CUBLAS_STATUS_NOT_SUPPORTED;
    if (status == CUBLAS_STATUS_SUCCESS)
        *choice = (struct choice){*key, result.algo, result.workspaceSize};
    return status;
}

/* FNV-1a, a word at a time. */
static struct choice *place_of(struct linear_cublaslt *library, const struct key *key) {
    uint64_t words[sizeof *key / sizeof(uint64_t)], hash = 0xcbf29ce484222325u;
    memcpy(words, key, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        hash = (hash ^ words[i]) * 0x100000001b3u;
    return &library->choice[(hash >> 32) % CHOICES];
}

/* Of the address and of every row's: 16 bytes are as good as more. */
static uint64_t alignment_of(const struct linear_cublaslt_args *args) {
    uintptr_t all = (uintptr_t)args->y | args->shape.y_stride * sizeof(float) |
                    args->shape.y_batch_stride * sizeof(float) | 16;
    return all & -all;
}

void linear_cublaslt_multiply(const struct linear_cublaslt_args *args,
                              const struct kernel_ctx *ctx) {
    static const float one = 1, zero = 0;
    struct linear_cublaslt *library = ctx->device->cublaslt;
    struct key key = {args->shape, alignment_of(args)};
    struct choice *choice = place_of(library, &key);
    struct product product;
    check(describe(&product, &args->shape), &args->shape);
    if (memcmp(&choice->key, &key, sizeof key) != 0)
        check(choose(library, &product, &key, choice), &args->shape);
    uintptr_t workspace = ((uintptr_t)args->workspace + LINEAR_CUBLASLT_ALIGN - 1) &
                          ~(uintptr_t)(LINEAR_CUBLASLT_ALIGN - 1);
    check(cublasLtMatmul(library->handle, &product.operation, &one, args->w, &product.w, args->x,
                         &product.x, &zero, args->y, &product.y, args->y, &product.y,
                         &choice->algorithm, (void *)workspace, choice->workspace_bytes,
                         ctx->stream),
          &args->shape);
}
