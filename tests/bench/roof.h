/* What this machine can do at this moment: the roofs that benches compare with.
 *
 * Each measures with all threads of the team and keeps the best of many runs, since whatever else
 * runs on the machine only takes away. None shares code with the kernels it judges. */
#ifndef ESPALIER_ROOF_H
#define ESPALIER_ROOF_H

#include "team.h"

/* Seconds since some moment, for differences. */
double roof_now_s(void);

/* Bytes a second, reading half a gigabyte in huge pages where the system gives them. */
double roof_read(struct kernel_team *team);

/* Operations a second (a multiplication and an addition are two) on registers alone. */
double roof_fma_f32(struct kernel_team *team);

/* The same by dot products of bf16 pairs; 0 where the processor has none. Our sums are f32's, so it
 * is no roof of ours: it says what a peer may use. */
double roof_dot_bf16(struct kernel_team *team);

/* The same by dot products of four bytes (VNNI). */
double roof_dot_int8(struct kernel_team *team);

#endif
