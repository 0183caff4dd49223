/* Time for the shells. The coordinator's core never calls this: time reaches it inside events. */
#ifndef ESPALIER_CLOCK_H
#define ESPALIER_CLOCK_H

#include <stdint.h>

#define NS_PER_US INT64_C(1000)
#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S  INT64_C(1000000000)

/* Nanoseconds of CLOCK_MONOTONIC: comparable between processes of one machine and one boot. */
int64_t clock_now_ns(void);

#endif
