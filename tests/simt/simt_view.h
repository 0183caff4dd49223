/* What a block sees of memory that several devices share (simt.h): as late as the memory model
 * allows, so that a missing release or acquire shows.
 *
 *     store    kept back; this block sees it at once, others after a release behind it
 *     load     what this block has seen there before, until an acquire lies in between
 *     barrier  what its threads have stored, released and acquired, all of them have
 *
 * Not modelled: that an acquire counts only where it has read what a release wrote. Stores that
 * were released are seen by everybody who has not looked before. */
#ifndef ESPALIER_SIMT_VIEW_H
#define ESPALIER_SIMT_VIEW_H

#include <stdint.h>

#define SIMT_VIEW_FLOATS 4u /* a load or a store is of this many */

struct simt_view;

/* Lives as long as the process. */
struct simt_view *simt_view_create(void);

void simt_view_begin(struct simt_view *view); /* a block that has seen nothing */
void simt_view_end(struct simt_view *view);   /* everybody sees what it stored */

void simt_view_store(struct simt_view *view, uint32_t thread, float *to, const float *value);
void simt_view_load(struct simt_view *view, uint32_t thread, float *value_out, const float *from);
void simt_view_release(struct simt_view *view, uint32_t thread);
void simt_view_acquire(struct simt_view *view, uint32_t thread);
void simt_view_barrier(struct simt_view *view);

#endif
