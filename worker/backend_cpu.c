#include "backend.h"

const struct backend backend_cpu = {
#define X(op) .op = op##_cpu,
    BACKEND_OPS(X)
#undef X
        .mla_expanded = mla_expanded_cpu};
