#include "zmq_context.h"

#include <stddef.h>
#include <zmq.h>

#include "base/check.h"

void *zmq_context_create(void) {
    void *context = zmq_ctx_new();
    CHECK(context);
    CHECK(zmq_ctx_set(context, ZMQ_IO_THREADS, 1) == 0);
    return context;
}

void zmq_context_destroy(void **context) {
    if (*context) zmq_ctx_term(*context);
    *context = NULL;
}
