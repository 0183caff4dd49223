/* What a rank computes on where that is not the host: a GPU. NULL stands for the host, everywhere:
 * ops then work on the host's memory, and the calls below do nothing or hand back what they got.
 *
 * Ops read and write memory of the device alone. What the host has for them comes by the input of
 * a step, and what it wants to know goes back at the step's end:
 *
 *     device_begin ─ device_put ... ─ device_send ─ ops ... ─ device_get ─ comm_wait
 *                    into the input   in one copy             into pinned memory
 *
 * Ops are work of the device's stream, and so are the copies: in the order of the calls, each
 * begun, not ended, when its call returns. What is put first in a step lies at the same place in
 * every step, so that ops that were captured find it. Thread: the compute thread, except where it
 * says so. */
#ifndef ESPALIER_DEVICE_H
#define ESPALIER_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernel.h"

struct backend;
struct comm_kind;
struct device_graph;
struct device_region;
struct drafter_weights;
struct weights;

/* The steps that memory is for. */
struct device_bounds {
    uint32_t rows_max; /* of a step */
    uint32_t sequences_max;
    uint32_t positions_max; /* of a sequence, the step's rows included */
    enum kernel_dtype activation;
    enum kernel_dtype kv_dtype;
};

/* A part of each row of an array, `bytes` of it, and where in another array it goes. */
struct device_rows {
    void *to;
    const void *from;
    size_t to_stride, from_stride; /* bytes from row to row */
    size_t bytes;
    size_t count;
};

struct device;
struct device_stage;

struct device_ops {
    void (*enter)(struct device *device);
    void (*close)(struct device *device);
    enum status (*take)(struct device *device, size_t bytes, const char *what, void **memory_out,
                        struct error *err);
    void (*give)(struct device *device, void *memory);
    enum status (*pin)(struct device *device, size_t bytes, void **memory_out, struct error *err);
    void (*unpin)(struct device *device, void *memory);
    void (*memory_left)(struct device *device, uint64_t *free_out, uint64_t *total_out);

    enum status (*region_create)(struct device *device, size_t cap_bytes,
                                 struct device_region **region_out, struct error *err);
    void (*region_destroy)(struct device_region *region);
    enum status (*region_resize)(struct device_region *region, size_t bytes, struct error *err);
    void *(*region_begin)(const struct device_region *region);
    size_t (*region_bytes)(const struct device_region *region);

    enum status (*stage_open)(struct device *device, size_t bytes, struct device_stage **stage_out,
                              struct error *err);
    void (*stage_close)(struct device_stage *stage);
    void *(*stage_memory)(const struct device_stage *stage);
    enum status (*stage_send)(struct device_stage *stage, size_t from, size_t bytes, void *to,
                              struct error *err);

    enum status (*reserve_input)(struct device *device, size_t bytes, struct error *err);
    void (*begin)(struct device *device);
    void *(*room)(struct device *device, size_t bytes, const void **there_out);
    enum status (*send)(struct device *device, struct error *err);
    enum status (*get)(struct device *device, void *pinned, const void *from, size_t bytes,
                       struct error *err);
    enum status (*wait)(struct device *device, struct error *err);
    enum status (*begin_capture)(struct device *device, struct error *err);
    enum status (*end_capture)(struct device *device, struct device_graph **graph_out,
                               struct error *err);
    enum status (*replay)(struct device_graph *graph, struct error *err);
    void (*drop)(struct device_graph *graph);
    enum status (*clear)(struct device *device, void *memory, size_t bytes, struct error *err);
    enum status (*copy)(struct device *device, void *to, const void *from, size_t bytes,
                        struct error *err);
    enum status (*copy_rows)(struct device *device, const struct device_rows *rows,
                             struct error *err);
};

struct device {
    const struct device_ops *ops;
    const char *name;                   /* of its kind: "NVIDIA H200" */
    const struct backend *backend;      /* the ops that work on its memory */
    const struct comm_kind *comm;       /* how ranks meet over it */
    const struct kernel_device *kernel; /* what a launch must know */
    void *stream;                       /* a cudaStream_t */
    uint64_t free_bytes;                /* when it was opened */
    /* What the greediest op of such steps needs beside its arguments, the drafter's (NULL: there is
     * none) among them. UNIMPLEMENTED where one does not take the model, with a line that says what
     * it takes. */
    enum status (*workspace_bytes)(const struct kernel_device *kernel,
                                   const struct weights *weights,
                                   const struct drafter_weights *drafter,
                                   const struct device_bounds *bounds, size_t *bytes_out,
                                   struct error *err);
};

/* The calling thread is the compute thread from now on. */
void device_enter(struct device *device);
void device_close(struct device **device);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Not for the host. RESOURCE_EXHAUSTED says what the bytes were for. */
enum status device_take(struct device *device, size_t bytes, const char *what, void **memory_out,
                        struct error *err) MUST_USE;
void device_give(struct device *device, void *memory); /* when all work is done */

/* Of the host, from and to which copies go at full speed. */
enum status device_pin(struct device *device, size_t bytes, void **memory_out,
                       struct error *err) MUST_USE;
void device_unpin(struct device *device, void *memory);

/* From array to array of ops. */
enum status device_copy_rows(struct device *device, const struct device_rows *rows,
                             struct error *err) MUST_USE;

/* Zeros, for all work that follows. */
enum status device_clear(struct device *device, void *memory, size_t bytes,
                         struct error *err) MUST_USE;

/* ---- bytes that are loaded: any thread, each with a stage of its own ------------------------- */

/* A bounded way there: pinned memory to fill. */
enum status device_stage_open(struct device *device, size_t bytes, struct device_stage **stage_out,
                              struct error *err) MUST_USE;
void device_stage_close(struct device *device, struct device_stage **stage);

/* ---- a step ---------------------------------------------------------------------------------- */

#define DEVICE_INPUT_ALIGN 64u /* of what is put: at most so much of the room is lost with each */

/* Room for what one step puts; before the first. */
enum status device_reserve_input(struct device *device, size_t bytes, struct error *err) MUST_USE;

/* Waits until what was put the time before last is no longer needed: long done, as a rule. */
void device_begin(struct device *device);

/* Where ops will find these bytes, once they are sent. On the host: where they are. */
const void *device_put(struct device *device, const void *data, size_t bytes);

/* Likewise, of bytes that are still to be written: there, before they are sent. Not for the
 * host. */
void *device_room(struct device *device, size_t bytes, const void **there_out);

enum status device_send(struct device *device, struct error *err) MUST_USE;

/* Into pinned memory, where it is once somebody has waited. Not for the host. */
enum status device_get(struct device *device, void *pinned, const void *from, size_t bytes,
                       struct error *err) MUST_USE;

/* ---- work that is captured once, and replayed ------------------------------------------------ */

/* What the stream is told from now on is kept and not done. Nothing in it may wait, nor copy from
 * or to memory of the host that is not pinned. Not for the host. */
enum status device_begin_capture(struct device *device, struct error *err) MUST_USE;

/* A graph of it, with all the device's memory that replays need. NULL where it fails: what was kept
 * is forgotten. */
enum status device_end_capture(struct device *device, struct device_graph **graph_out,
                               struct error *err) MUST_USE;

/* All of it, with the arguments that it was told with. */
enum status device_replay(struct device *device, struct device_graph *graph,
                          struct error *err) MUST_USE;
void device_drop(struct device *device, struct device_graph **graph); /* when all work is done */

/* ---- looking, between steps ------------------------------------------------------------------ */

/* An array of ops to be filled by the host: the array itself, or memory in its place, NULL where
 * there is none. device_filled takes it there and frees it. */
void *device_fill(struct device *device, void *array, size_t bytes);
enum status device_filled(struct device *device, void *array, void *filled, size_t bytes,
                          struct error *err) MUST_USE;

/* What an array of ops holds: the array itself, or a copy, until device_looked. */
enum status device_look(struct device *device, const void *array, size_t bytes,
                        const void **look_out, struct error *err) MUST_USE;
void device_looked(struct device *device, const void *look);

/* Into memory of the host, when all work before is done. */
enum status device_read(struct device *device, void *to, const void *from, size_t bytes,
                        struct error *err) MUST_USE;

/* From memory of the host, which may be reused at once. */
enum status device_write(struct device *device, void *to, const void *from, size_t bytes,
                         struct error *err) MUST_USE;

/* Until all work is done. */
enum status device_wait(struct device *device, struct error *err) MUST_USE;

#endif
