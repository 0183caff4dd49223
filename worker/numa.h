/* Which CPUs and which memory of the machine are a rank's.
 *
 * Where a machine has several memory nodes (sockets, or parts of one), a CPU reads its own node's
 * memory faster than another's, and pages lie where the thread that touched them first ran. So a
 * worker binds itself before it has a thread, and before weights, pool, activations and what the
 * ranks share are touched:
 *
 *     numa_read      nodes, the CPUs of each that we may use, the memory
 *     numa_choose    which of them are this rank's: a function of what was read
 *     numa_plan      both; auto is never refused
 *     numa_bind      the CPUs become the process's, the memory its first choice
 *     numa_placement where pages came to lie, once they have been touched
 *
 * auto: the n nodes that have CPUs we may use, in the order of their numbers, and the tp ranks are
 * cut into the same number of groups of neighbours. Group j of g has nodes [j n/g, (j+1) n/g) and
 * ranks [j tp/g, (j+1) tp/g), so every group has as many of both as any other. g is the greatest
 * number that divides n and tp, and with which no group has less than 3/4 of the CPUs that each
 * would have if all had as many: a step takes as long as its slowest rank.
 *
 *     n = 1           nothing is done
 *     n = 2, tp = 8   ranks 0 to 3 on the first node, 4 to 7 on the second
 *     n = 4, tp = 2   rank 0 on two nodes, rank 1 on the other two
 *     n = 6, tp = 4   two groups: three nodes, two ranks
 *     n = 2, tp = 1   one group: both nodes, and so n = 3, tp = 4
 *
 * Memory of a group of one node is preferred, not insisted on: where the node is full, as of a
 * checkpoint's pages in the cache, far memory is slow and no memory is the end. Memory of several
 * is interleaved: any thread of a rank may read any of its weights, so no page has a best place.
 * Where a group's nodes have no memory for us (or the kernel lets us choose none, as in containers
 * under a usual seccomp profile), pages lie near the threads that touch them first: for one node
 * that comes to the same.
 *
 * All ranks are taken to be on this machine, under one mask: each must come to the same groups. Who
 * gives ranks masks of their own, over several nodes, also wants `off`.
 *
 * Thread: before there is a second one; numa_log and what is about placement, any.
 */
#ifndef ESPALIER_NUMA_H
#define ESPALIER_NUMA_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define NUMA_ROOT       "/sys/devices/system/node"
#define NUMA_NODES_MAX  64u
#define NUMA_LIST_BYTES 128u

/* By affinity mask and control group. A cpu_set_t is any 1,024 numbers, laid out as the kernel
 * takes sets of nodes as well. */
struct numa_allowed {
    cpu_set_t cpus;
    cpu_set_t memory; /* nodes we may take memory of */
};

struct numa_node {
    uint32_t number;
    cpu_set_t cpus;        /* of those allowed */
    uint64_t memory_bytes; /* 0: none, or not for us */
};

struct numa_nodes {
    struct numa_node node[NUMA_NODES_MAX]; /* by number, rising */
    uint32_t count;
};

enum numa_mode {
    NUMA_AUTO,
    NUMA_OFF,
    NUMA_NODE, /* the one that is named */
};

struct numa_request {
    enum numa_mode mode;
    uint32_t node; /* NUMA_NODE */
    uint32_t rank, tp;
};

enum numa_policy {
    NUMA_LOCAL, /* the kernel's: of the node on which a page's first thread runs */
    NUMA_PREFERRED,
    NUMA_INTERLEAVED,
};

struct numa_choice {
    enum numa_mode mode;
    bool bound;       /* to `nodes`; false: everything below but `reason` is what there is anyhow */
    cpu_set_t nodes;  /* where bound */
    cpu_set_t memory; /* of these, those whose memory we take */
    uint64_t memory_bytes;
    cpu_set_t cpus;
    uint32_t cpu_count;
    uint32_t ranks; /* that share the CPUs, this one included */
    enum numa_policy policy;
    bool troubled;    /* `reason` is worth a warning */
    char reason[160]; /* why not bound, or not to the memory; "": nothing to say */
};

/* The kernel's for this process. */
struct numa_allowed numa_allowed(void);

/* The nodes below `root`, laid out as NUMA_ROOT is. NOT_FOUND where the kernel knows none (no file
 * `online`), INVALID_ARGUMENT where a file is missing or says what cannot be understood. */
enum status numa_read(const char *root, const struct numa_allowed *allowed,
                      struct numa_nodes *nodes_out, struct error *err) MUST_USE;

/* FAILED_PRECONDITION, with the nodes accepted, where the node asked for is not there or has no
 * CPU for us. */
enum status numa_choose(const struct numa_nodes *nodes, const struct numa_allowed *allowed,
                        const struct numa_request *request, struct numa_choice *choice_out,
                        struct error *err) MUST_USE;

/* Read and choose. Nodes that cannot be read leave `auto` unbound, with the reason; a node asked
 * for is then refused: FAILED_PRECONDITION. */
enum status numa_plan(const char *root, const struct numa_allowed *allowed,
                      const struct numa_request *request, struct numa_choice *choice_out,
                      struct error *err) MUST_USE;

/* Bind the process, threads to come included, and tell cpus.h. What the kernel does not let us do
 * is left out of *choice, with the reason; FAILED_PRECONDITION where a node was asked for and its
 * CPUs cannot be had. */
enum status numa_bind(struct numa_choice *choice, struct error *err) MUST_USE;

/* One line, a warning where something did not go as it should. */
void numa_log(const struct numa_choice *choice, uint32_t threads);

/* Where the process's memory lies, files aside: on the nodes it was to be taken of, or not. */
struct numa_placement {
    uint64_t near_bytes, far_bytes;
};

#define NUMA_MAPS "/proc/self/numa_maps"

/* False where `path`, laid out as NUMA_MAPS is, cannot be read. Slow: the kernel walks page
 * tables. */
bool numa_placement(const char *path, const struct numa_choice *choice,
                    struct numa_placement *placement_out);

/* One line where memory was to lie somewhere, a warning where more than 5 % of it does not. */
void numa_log_placement(const struct numa_choice *choice);

/* "0-3,8" into out[NUMA_LIST_BYTES], and out; ends in "..." where it is longer, is "none" where the
 * set is empty. */
const char *numa_list(const cpu_set_t *set, char *out);

#endif
