/* cuBLASLt on emulated devices: products are host functions of their streams, computed plainly. It
 * is as strict as it may be: an algorithm multiplies only what it was chosen for, addresses have
 * the alignment that was told, and the workspace is overwritten at both ends. */
#ifndef ESPALIER_HOST_CUBLASLT_H
#define ESPALIER_HOST_CUBLASLT_H

#include <cublasLt.h>

/* Let call number `calls` from now on, 0 the next, return `status` once. */
void host_cublaslt_fail(uint32_t calls, cublasStatus_t status);

struct host_cublaslt_counts {
    uint32_t made, destroyed; /* handles */
    uint32_t chosen;          /* algorithms */
    uint32_t products;
};
struct host_cublaslt_counts host_cublaslt_counted(void);

#endif
