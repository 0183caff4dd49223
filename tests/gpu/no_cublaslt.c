/* cuBLASLt for a bench that is carried to its GPU without the library's 540 MB: it opens, since the
 * worker's device does, and multiplies nothing. */
#include <cublasLt.h>

const char *cublasLtGetStatusString(cublasStatus_t status) {
    (void)status;
    return "built without cuBLASLt";
}

size_t cublasLtGetVersion(void) {
    return 0;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle_out) {
    *handle_out = NULL;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    (void)handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t stride) {
    (void)layout, (void)size, (void)type, (void)rows, (void)columns, (void)stride;
    return CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes) {
    (void)layout, (void)attribute, (void)value, (void)bytes;
    return CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t operation, size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
    (void)operation, (void)size, (void)compute, (void)scale;
    return CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    (void)operation, (void)attribute, (void)value, (void)bytes;
    return CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     size_t size) {
    (void)preference, (void)size;
    return CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes) {
    (void)preference, (void)attribute, (void)value, (void)bytes;
    return CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results,
                                              int *found_out) {
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
    (void)wanted, (void)results, (void)found_out;
    return CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void *alpha, const void *a_values, cublasLtMatrixLayout_t a,
                              const void *b_values, cublasLtMatrixLayout_t b, const void *beta,
                              const void *c_values, cublasLtMatrixLayout_t c, void *d_values,
                              cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algorithm,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream) {
    (void)handle, (void)operation, (void)alpha, (void)a_values, (void)a, (void)b_values, (void)b;
    (void)beta, (void)c_values, (void)c, (void)d_values, (void)d, (void)algorithm, (void)workspace;
    (void)workspace_bytes, (void)stream;
    return CUBLAS_STATUS_NOT_INITIALIZED;
}
