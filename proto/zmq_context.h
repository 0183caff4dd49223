/* The ZeroMQ context of a process: one I/O thread, made before its channels and ended after them.
 */
#ifndef ESPALIER_ZMQ_CONTEXT_H
#define ESPALIER_ZMQ_CONTEXT_H

void *zmq_context_create(void);

/* Every channel of the context must be closed. Messages that were not sent by now are dropped. */
void zmq_context_destroy(void **context);

#endif
