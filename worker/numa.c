#include "numa.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "cpus.h"

/* A node's lists and its meminfo; a machine of a thousand CPUs, every other one, fits. */
#define FILE_BYTES_MAX 8192u
#define PATH_BYTES_MAX 512u

/* Larger numbers are no CPU's. */
#define NUMBER_MAX 1000000u

/* Of a rank's memory: what was touched before the binding, and some that did not fit. */
#define FAR_PERCENT_MAX 5

/* The kernel counts one bit more than it reads. */
#define SET_BITS (CPU_SETSIZE + 1ul)

static enum status read_node(const char *root, uint32_t number, const struct numa_allowed *allowed,
                             struct numa_node *node, struct error *err);
static enum status read_file(const char *path, char text_out[FILE_BYTES_MAX], struct error *err);
static enum status read_list(const char *path, cpu_set_t *set_out, struct error *err);
static enum status read_memory(const char *path, uint64_t *bytes_out, struct error *err);
static bool parse_list(const char *text, cpu_set_t *set_out);
static bool parse_number(const char **text, uint32_t *number_out);
static void leave_unbound(const struct numa_allowed *allowed, const struct numa_request *request,
                          const char *reason, struct numa_choice *choice);
static void choose_group(const struct numa_nodes *nodes, const struct numa_allowed *allowed,
                         const struct numa_request *request, struct numa_choice *choice);
static enum status choose_node(const struct numa_nodes *nodes, const struct numa_allowed *allowed,
                               const struct numa_request *request, struct numa_choice *choice,
                               struct error *err);

/* ============================== what there is ================================================= */

struct numa_allowed numa_allowed(void) {
    struct numa_allowed allowed;
    CPU_ZERO(&allowed.cpus);
    CPU_ZERO(&allowed.memory);
    (void)sched_getaffinity(0, sizeof allowed.cpus, &allowed.cpus);
    if (syscall(SYS_get_mempolicy, NULL, &allowed.memory, SET_BITS, NULL, MPOL_F_MEMS_ALLOWED) != 0)
        memset(&allowed.memory, 0xff, sizeof allowed.memory); /* bind, and see */
    return allowed;
}

enum status numa_read(const char *root, const struct numa_allowed *allowed,
                      struct numa_nodes *nodes_out, struct error *err) {
    char path[PATH_BYTES_MAX];
    cpu_set_t online;
    nodes_out->count = 0;
    snprintf(path, sizeof path, "%s/online", root);
    enum status status = read_list(path, &online, err);
    for (uint32_t number = 0; number < CPU_SETSIZE && status == STATUS_OK; number++) {
        if (!CPU_ISSET(number, &online)) continue;
        if (nodes_out->count == NUMA_NODES_MAX)
            return error_set(err, STATUS_INVALID_ARGUMENT, "%s: more than %u nodes", path,
                             NUMA_NODES_MAX);
        status = read_node(root, number, allowed, &nodes_out->node[nodes_out->count++], err);
    }
    return status;
}

static enum status read_node(const char *root, uint32_t number, const struct numa_allowed *allowed,
                             struct numa_node *node, struct error *err) {
    char path[PATH_BYTES_MAX];
    *node = (struct numa_node){.number = number};
    snprintf(path, sizeof path, "%s/node%u/cpulist", root, number);
    enum status status = read_list(path, &node->cpus, err);
    CPU_AND(&node->cpus, &node->cpus, &allowed->cpus);
    snprintf(path, sizeof path, "%s/node%u/meminfo", root, number);
    if (status == STATUS_OK) status = read_memory(path, &node->memory_bytes, err);
    if (!CPU_ISSET(number, &allowed->memory)) node->memory_bytes = 0;
    /* A node that is on line and has no files is another matter than no nodes. */
    if (status == STATUS_NOT_FOUND) return error_wrap(err, STATUS_INVALID_ARGUMENT, "on line");
    return status;
}

static enum status read_file(const char *path, char text_out[FILE_BYTES_MAX], struct error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_set(err, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_INVALID_ARGUMENT,
                         "%s: %s", path, strerror(errno));
    size_t at = 0;
    ssize_t bytes;
    do {
        bytes = read(fd, text_out + at, FILE_BYTES_MAX - 1 - at);
        if (bytes > 0) at += (size_t)bytes;
    } while (bytes > 0);
    int cause = errno;
    close(fd);
    text_out[at] = '\0';
    if (bytes < 0) return error_set(err, STATUS_INVALID_ARGUMENT, "%s: %s", path, strerror(cause));
    if (at == FILE_BYTES_MAX - 1)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: longer than %zu bytes", path, at);
    return STATUS_OK;
}

static enum status read_list(const char *path, cpu_set_t *set_out, struct error *err) {
    char text[FILE_BYTES_MAX];
    enum status status = read_file(path, text, err);
    if (status != STATUS_OK) return status;
    if (parse_list(text, set_out)) return STATUS_OK;
    size_t bytes = strlen(text);
    while (bytes > 0 && text[bytes - 1] == '\n')
        text[--bytes] = '\0';
    for (size_t i = 0; i < bytes; i++)
        if (text[i] < ' ') text[i] = '?'; /* this will be part of one line */
    return error_set(err, STATUS_INVALID_ARGUMENT, "%s: found \"%.40s\", accepted: as 0-3,8", path,
                     text);
}

/* "Node 0 MemTotal:  6514900 kB", among other lines. */
static enum status read_memory(const char *path, uint64_t *bytes_out, struct error *err) {
    char text[FILE_BYTES_MAX];
    enum status status = read_file(path, text, err);
    if (status != STATUS_OK) return status;
    const char *total = strstr(text, " MemTotal:");
    uint64_t kib;
    if (!total || sscanf(total, " MemTotal: %" SCNu64 " kB", &kib) != 1)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: says nothing of MemTotal", path);
    *bytes_out = kib * 1024;
    return STATUS_OK;
}

/* "0-3,8\n", and "\n" for none. Numbers beyond the set are no concern of ours: the kernel gives no
 * affinity mask to one who has no room for it. */
static bool parse_list(const char *text, cpu_set_t *set_out) {
    CPU_ZERO(set_out);
    if (strcmp(text, "") == 0 || strcmp(text, "\n") == 0) return true;
    for (;; text++) {
        uint32_t first, last;
        if (!parse_number(&text, &first)) return false;
        last = first;
        if (*text == '-') {
            text++;
            if (!parse_number(&text, &last) || last < first) return false;
        }
        for (uint32_t number = first; number <= last && number < CPU_SETSIZE; number++)
            CPU_SET(number, set_out);
        if (*text != ',') break;
    }
    return strcmp(text, "") == 0 || strcmp(text, "\n") == 0;
}

static bool parse_number(const char **text, uint32_t *number_out) {
    if (**text < '0' || **text > '9') return false;
    char *end;
    unsigned long number = strtoul(*text, &end, 10);
    *text = end;
    *number_out = (uint32_t)number;
    return number <= NUMBER_MAX;
}

/* ============================== whose it is =================================================== */

enum status numa_choose(const struct numa_nodes *nodes, const struct numa_allowed *allowed,
                        const struct numa_request *request, struct numa_choice *choice_out,
                        struct error *err) {
    leave_unbound(allowed, request, "", choice_out);
    switch (request->mode) {
    case NUMA_OFF: return STATUS_OK;
    case NUMA_AUTO: choose_group(nodes, allowed, request, choice_out); return STATUS_OK;
    case NUMA_NODE: break;
    }
    return choose_node(nodes, allowed, request, choice_out, err);
}

enum status numa_plan(const char *root, const struct numa_allowed *allowed,
                      const struct numa_request *request, struct numa_choice *choice_out,
                      struct error *err) {
    struct numa_nodes nodes = {.count = 0};
    struct error found;
    enum status status = STATUS_OK;
    if (request->mode != NUMA_OFF) status = numa_read(root, allowed, &nodes, &found);
    if (status == STATUS_OK) return numa_choose(&nodes, allowed, request, choice_out, err);
    if (request->mode == NUMA_NODE)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "--numa: found %u, and the nodes of this machine are not known (%s); "
                         "accepted: auto, off",
                         request->node, found.text);
    leave_unbound(allowed, request, found.text, choice_out);
    choice_out->troubled = status != STATUS_NOT_FOUND;
    return STATUS_OK;
}

static void leave_unbound(const struct numa_allowed *allowed, const struct numa_request *request,
                          const char *reason, struct numa_choice *choice) {
    *choice = (struct numa_choice){.mode = request->mode,
                                   .cpus = allowed->cpus,
                                   .cpu_count = (uint32_t)CPU_COUNT(&allowed->cpus),
                                   .ranks = request->tp,
                                   .policy = NUMA_LOCAL};
    snprintf(choice->reason, sizeof choice->reason, "%s", reason);
}

/* The nodes' CPUs and memory become the choice. */
static void take_nodes(const struct numa_node *const *node, uint32_t count, uint32_t ranks,
                       struct numa_choice *choice) {
    choice->bound = true;
    choice->ranks = ranks;
    CPU_ZERO(&choice->cpus);
    for (uint32_t i = 0; i < count; i++) {
        CPU_SET(node[i]->number, &choice->nodes);
        CPU_OR(&choice->cpus, &choice->cpus, &node[i]->cpus);
        if (node[i]->memory_bytes == 0) continue;
        CPU_SET(node[i]->number, &choice->memory);
        choice->memory_bytes += node[i]->memory_bytes;
    }
    choice->cpu_count = (uint32_t)CPU_COUNT(&choice->cpus);
    switch (CPU_COUNT(&choice->memory)) {
    case 0:
        choice->policy = NUMA_LOCAL;
        snprintf(choice->reason, sizeof choice->reason, "no memory there is for us");
        break;
    case 1: choice->policy = NUMA_PREFERRED; break;
    default: choice->policy = NUMA_INTERLEAVED; break;
    }
}

static uint32_t common_divisor(uint32_t a, uint32_t b) {
    while (b > 0) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Has each of `groups` at least 3/4 of an even part of the CPUs? */
static bool is_even(const struct numa_node *const *node, uint32_t count, uint32_t groups) {
    uint32_t all = 0, fewest = UINT32_MAX, each = count / groups;
    for (uint32_t group = 0; group < groups; group++) {
        uint32_t cpus = 0;
        for (uint32_t i = group * each; i < (group + 1) * each; i++)
            cpus += (uint32_t)CPU_COUNT(&node[i]->cpus);
        all += cpus;
        if (cpus < fewest) fewest = cpus;
    }
    return 4 * groups * fewest >= 3 * all;
}

static void choose_group(const struct numa_nodes *nodes, const struct numa_allowed *allowed,
                         const struct numa_request *request, struct numa_choice *choice) {
    const struct numa_node *node[NUMA_NODES_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < nodes->count; i++)
        if (CPU_COUNT(&nodes->node[i].cpus) > 0) node[count++] = &nodes->node[i];
    if (count < 2) {
        leave_unbound(allowed, request, count == 1 ? "the CPUs are of one node" : "", choice);
        return;
    }
    uint32_t most = common_divisor(count, request->tp), groups = most;
    while (most % groups != 0 || !is_even(node, count, groups))
        groups--; /* one group is even */
    uint32_t ranks = request->tp / groups, each = count / groups;
    take_nodes(node + request->rank / ranks * each, each, ranks, choice);
}

static enum status choose_node(const struct numa_nodes *nodes, const struct numa_allowed *allowed,
                               const struct numa_request *request, struct numa_choice *choice,
                               struct error *err) {
    const struct numa_node *found = NULL;
    cpu_set_t accepted;
    CPU_ZERO(&accepted);
    for (uint32_t i = 0; i < nodes->count; i++) {
        if (nodes->node[i].number == request->node) found = &nodes->node[i];
        if (CPU_COUNT(&nodes->node[i].cpus) > 0) CPU_SET(nodes->node[i].number, &accepted);
    }
    char nodes_text[NUMA_LIST_BYTES], cpus_text[NUMA_LIST_BYTES];
    numa_list(&accepted, nodes_text);
    if (!found)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "--numa: found %u, and this machine has no such node; accepted: auto, "
                         "off, nodes with CPUs for us (%s)",
                         request->node, nodes_text);
    if (CPU_COUNT(&found->cpus) == 0)
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "--numa: found %u, a node with none of the CPUs we may use (%s); "
                         "accepted: auto, off, nodes with CPUs for us (%s)",
                         request->node, numa_list(&allowed->cpus, cpus_text), nodes_text);
    take_nodes(&found, 1, request->tp, choice);
    return STATUS_OK;
}

/* ============================== made so ======================================================= */

static void say_why(struct numa_choice *choice, const char *call, bool matters) {
    choice->troubled = matters;
    snprintf(choice->reason, sizeof choice->reason, "%s: %s", call, strerror(errno));
}

enum status numa_bind(struct numa_choice *choice, struct error *err) {
    if (!choice->bound) return STATUS_OK;
    if (sched_setaffinity(0, sizeof choice->cpus, &choice->cpus) != 0) {
        say_why(choice, "sched_setaffinity", true);
        char nodes[NUMA_LIST_BYTES];
        if (choice->mode == NUMA_NODE)
            return error_set(err, STATUS_FAILED_PRECONDITION,
                             "--numa: found %s, whose CPUs cannot be had (%s); accepted: auto, off",
                             numa_list(&choice->nodes, nodes), choice->reason);
        choice->bound = false;
        choice->policy = NUMA_LOCAL;
        choice->memory_bytes = 0;
        (void)sched_getaffinity(0, sizeof choice->cpus, &choice->cpus);
        return STATUS_OK;
    }
    cpus_set_sharers(choice->ranks);
    int policy = choice->policy == NUMA_PREFERRED ? MPOL_PREFERRED : MPOL_INTERLEAVE;
    if (choice->policy != NUMA_LOCAL &&
        syscall(SYS_set_mempolicy, policy, &choice->memory, SET_BITS) != 0) {
        /* Threads that are bound to one node touch its memory anyhow. */
        say_why(choice, "set_mempolicy", choice->policy == NUMA_INTERLEAVED);
        choice->policy = NUMA_LOCAL;
    }
    return STATUS_OK;
}

void numa_log(const struct numa_choice *choice, uint32_t threads) {
    static const char *const modes[] = {"auto", "off", "node"};
    static const char *const policies[] = {"local", "preferred", "interleaved"};
    char nodes[NUMA_LIST_BYTES], cpus[NUMA_LIST_BYTES];
    log_write(choice->troubled ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, "numa",
              "mode=%s nodes=%s cpus=%s ranks=%u threads=%u policy=%s memory_bytes=%" PRIu64
              " reason=\"%s\"",
              modes[choice->mode], choice->bound ? numa_list(&choice->nodes, nodes) : "all",
              numa_list(&choice->cpus, cpus), choice->ranks, threads, policies[choice->policy],
              choice->memory_bytes, choice->reason);
}

/* ============================== looked at ===================================================== */

/* "7f00... prefer:0 anon=3 dirty=3 N0=2 N1=1 kernelpagesize_kB=4": adds what it says of pages. */
static void add_mapping(const char *line, const cpu_set_t *memory,
                        struct numa_placement *placement) {
    static const char page_key[] = " kernelpagesize_kB=";
    const char *page = strstr(line, page_key);
    uint64_t page_bytes = page ? strtoull(page + sizeof page_key - 1, NULL, 10) * 1024 : 0;
    for (const char *at = strstr(line, " N"); at; at = strstr(at + 1, " N")) {
        uint32_t node;
        uint64_t pages;
        if (sscanf(at, " N%" SCNu32 "=%" SCNu64, &node, &pages) != 2) continue;
        bool is_near = node < CPU_SETSIZE && CPU_ISSET(node, memory);
        *(is_near ? &placement->near_bytes : &placement->far_bytes) += pages * page_bytes;
    }
}

bool numa_placement(const char *path, const struct numa_choice *choice,
                    struct numa_placement *placement_out) {
    *placement_out = (struct numa_placement){0};
    FILE *file = fopen(path, "re");
    if (!file) return false;
    char *line = NULL;
    size_t line_bytes = 0;
    /* What files' pages lie on is decided by whoever reads a file first, of shared memory by all
     * ranks. */
    while (getline(&line, &line_bytes, file) > 0)
        if (!strstr(line, " file=")) add_mapping(line, &choice->memory, placement_out);
    free(line);
    fclose(file);
    return true;
}

void numa_log_placement(const struct numa_choice *choice) {
    struct numa_placement placement;
    if (!choice->bound || CPU_COUNT(&choice->memory) == 0) return;
    if (!numa_placement(NUMA_MAPS, choice, &placement)) return;
    uint64_t all = placement.near_bytes + placement.far_bytes;
    bool is_far = placement.far_bytes * 100 > all * FAR_PERCENT_MAX;
    log_write(is_far ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, "numa_placed",
              "near_bytes=%" PRIu64 " far_bytes=%" PRIu64, placement.near_bytes,
              placement.far_bytes);
}

const char *numa_list(const cpu_set_t *set, char *out) {
    size_t at = 0;
    snprintf(out, NUMA_LIST_BYTES, "none");
    for (uint32_t first = 0; first < CPU_SETSIZE; first++) {
        if (!CPU_ISSET(first, set)) continue;
        uint32_t last = first;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set))
            last++;
        char range[16];
        if (last == first)
            snprintf(range, sizeof range, "%s%u", at > 0 ? "," : "", first);
        else
            snprintf(range, sizeof range, "%s%u-%u", at > 0 ? "," : "", first, last);
        if (at + strlen(range) + sizeof ",..." > NUMA_LIST_BYTES) {
            snprintf(out + at, NUMA_LIST_BYTES - at, ",...");
            break;
        }
        at += (size_t)snprintf(out + at, NUMA_LIST_BYTES - at, "%s", range);
        first = last;
    }
    return out;
}
