/* The compute thread of a worker: loads the weights, owns the engine, runs the plans.
 *
 *     control thread                          compute thread
 *       order (a decoded control message) ──▶   load / join / step
 *       note  (an encoded worker message) ◀──   done
 *       abort, progress                   ──▶   (at once, across the threads)
 *
 * The control thread never waits for this one, so probes and heartbeats answer while weights load
 * and while a step runs. Orders are done in the order they were given.
 *
 * Errors. A generation that cannot go on (a peer is gone, this rank holds another state than the
 * plan says) gives a FAULT note, and the thread waits for the next group with its weights. A device
 * or memory that fails gives a fatal one, and the process is to end: workers are crash-only.
 */
#ifndef ESPALIER_COMPUTE_H
#define ESPALIER_COMPUTE_H

#include "base/arena.h"
#include "checkpoint.h"
#include "engine.h"
#include "numa.h"

struct compute;

struct compute_options {
    const struct checkpoint *checkpoint;      /* borrowed for the thread's life */
    const struct checkpoint_drafter *drafter; /* likewise; NULL: none */
    uint32_t draft_window;                    /* tokens of context it looks at; 0: all */
    uint32_t rank, tp;
    uint32_t threads;
    const struct numa_choice *numa; /* borrowed likewise */
    uint64_t device_bytes;          /* that the rank has; 0: as much as the machine */
    struct device *device;          /* borrowed likewise; NULL: the CPU */
    bool quiet;                     /* leave the operators' log lines out */
    void (*notify)(void *user);     /* called on the compute thread: a note is there */
    void *user;
};

/* An order: a control message with the memory it points into. */
struct compute_order {
    struct control_message message;
    struct arena arena;
    uint32_t connection; /* to the coordinator: which one it came over */
    int64_t received_ns;
};

struct compute_order *compute_order_create(size_t wire_bytes);
void compute_order_destroy(struct compute_order *order);

/* A message to be sent to the coordinator. */
struct compute_note {
    enum worker_message_type type;
    uint32_t connection; /* of the order it answers */
    uint64_t generation; /* JOINED, FAULT */
    int exit_code;       /* the process ends with it once this is sent; -1: it goes on */
    struct bytes body;   /* encoded */
    struct arena arena;  /* holds body */
};

/* Starts the thread. Its first order must be WELCOME, which loads the weights. */
struct compute *compute_create(const struct compute_options *options);

/* Moves *order. False: too many are waiting; the coordinator does not keep to one plan at a
 * time. */
bool compute_give(struct compute *compute, struct compute_order **order);

/* The next note, or NULL; compute_note_destroy it. */
struct compute_note *compute_take(struct compute *compute);
void compute_note_destroy(struct compute_note *note);

/* Any collective of this generation, running or to come, ends now; its plans are skipped. */
void compute_abort(struct compute *compute, uint64_t generation);

struct compute_progress {
    bool loading, loaded, computing;
    uint64_t load_bytes, load_bytes_total;
    struct engine_progress engine;
    enum self_test self_test; /* the rung that is being climbed, and */
    uint32_t self_test_percent;
};
struct compute_progress compute_progress(struct compute *compute);

/* What operators draw. */
struct compute_numbers {
    uint32_t weight_loads;        /* times that weights were read, begun or done */
    struct engine_numbers engine; /* zeros while there is none */
};
struct compute_numbers compute_numbers(struct compute *compute); /* any thread */

/* Abort what runs, end the thread, free everything. Waits for a step to notice. */
void compute_destroy(struct compute **compute);

#endif
