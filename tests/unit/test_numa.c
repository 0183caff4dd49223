/* Whose CPUs and memory are a rank's: over trees of nodes that this test makes, and bound for real
 * in a child, as far as a machine of one node can show it. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/mempolicy.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cpus.h"
#include "numa.h"

/* ============================== trees ========================================================= */

#define TREE_NODES 8
#define GIB_IN_KIB (1024u * 1024u)

struct tree_node {
    int number;
    const char *cpulist;
    unsigned memory_gib;
};

struct tree {
    const char *online; /* NULL: no such file */
    struct tree_node node[TREE_NODES];
};

static char root[] = "/tmp/espalier-numa-XXXXXX";

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void node_path(char out[128], int number, const char *name) {
    snprintf(out, 128, "%s/node%d%s%s", root, number, *name ? "/" : "", name);
}

static void plant_online(const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/online", root);
    write_file(path, text);
}

static void plant_node(const struct tree_node *node) {
    char path[128], text[256];
    node_path(path, node->number, "");
    assert_int_equal(mkdir(path, 0700), 0);
    node_path(path, node->number, "cpulist");
    write_file(path, node->cpulist);
    node_path(path, node->number, "meminfo");
    snprintf(text, sizeof text, "Node %d MemTotal:       %u kB\nNode %d MemFree:        1024 kB\n",
             node->number, node->memory_gib * GIB_IN_KIB, node->number);
    write_file(path, text);
}

static void plant(const struct tree *tree) {
    if (tree->online) plant_online(tree->online);
    for (int i = 0; i < TREE_NODES && tree->node[i].cpulist; i++)
        plant_node(&tree->node[i]);
}

static void fell_node(int number) {
    static const char *const names[] = {"cpulist", "meminfo"};
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        node_path(path, number, names[i]);
        (void)unlink(path);
    }
    node_path(path, number, "");
    assert_int_equal(rmdir(path), 0);
}

static void fell(const struct tree *tree) {
    char path[128];
    snprintf(path, sizeof path, "%s/online", root);
    (void)unlink(path);
    for (int i = 0; i < TREE_NODES && tree->node[i].cpulist; i++)
        fell_node(tree->node[i].number);
}

static int set_up(void **state) {
    (void)state;
    return mkdtemp(root) ? 0 : 1;
}

static int tear_down(void **state) {
    (void)state;
    return rmdir(root);
}

/* CPUs [first, last], memory of every node. */
static struct numa_allowed allow(uint32_t first, uint32_t last) {
    struct numa_allowed allowed;
    CPU_ZERO(&allowed.cpus);
    for (uint32_t cpu = first; cpu <= last; cpu++)
        CPU_SET(cpu, &allowed.cpus);
    memset(&allowed.memory, 0xff, sizeof allowed.memory);
    return allowed;
}

static const struct tree one = {"0\n", {{0, "0-7\n", 64}}};
static const struct tree two = {"0-1\n", {{0, "0-7\n", 64}, {1, "8-15\n", 32}}};
static const struct tree threads = {"0-1\n", {{0, "0-3,8-11\n", 64}, {1, "4-7,12-15\n", 64}}};
static const struct tree three = {"0-2\n", {{0, "0-7\n", 8}, {1, "8-15\n", 8}, {2, "16-23\n", 8}}};
static const struct tree four = {
    "0-3\n", {{0, "0-3\n", 16}, {1, "4-7\n", 16}, {2, "8-11\n", 16}, {3, "12-15\n", 16}}};
static const struct tree six = {"0-5\n",
                                {{0, "0-3\n", 16},
                                 {1, "4-7\n", 16},
                                 {2, "8-11\n", 16},
                                 {3, "12-15\n", 16},
                                 {4, "16-19\n", 16},
                                 {5, "20-23\n", 16}}};
/* Memory on a card, as CXL's. */
static const struct tree far_memory = {"0-2\n",
                                       {{0, "0-7\n", 64}, {1, "8-15\n", 64}, {2, "\n", 256}}};
static const struct tree one_and_far = {"0-1\n", {{0, "0-7\n", 64}, {1, "\n", 256}}};
/* Sockets without memory of their own. */
static const struct tree bare = {"0-1\n", {{0, "0-7\n", 64}, {1, "8-15\n", 0}}};
/* Numbers with holes: what was taken offline is not looked at. */
static const struct tree holes = {"0,2,7\n", {{0, "0-3\n", 8}, {2, "8-11\n", 8}, {7, "30\n", 8}}};
/* Lists as no kernel of today writes them, and that say the same. */
static const struct tree odd_lists = {"0,1",
                                      {{0, "0,1,2,3-3,4-7", 64}, {1, "8-9,10-15,5000-6000\n", 32}}};

/* ============================== the choice ==================================================== */

/* "auto", "off", or a node. */
static struct numa_request ask(const char *flag, uint32_t rank, uint32_t tp) {
    struct numa_request request = {.mode = NUMA_NODE, .rank = rank, .tp = tp};
    if (strcmp(flag, "auto") == 0) request.mode = NUMA_AUTO;
    if (strcmp(flag, "off") == 0) request.mode = NUMA_OFF;
    if (request.mode == NUMA_NODE) request.node = (uint32_t)strtoul(flag, NULL, 10);
    return request;
}

/* "nodes / cpus / memory / ranks / policy", or "-" for a rank that is left alone. */
static void describe(const struct numa_choice *choice, char out[256]) {
    static const char policies[] = {'L', 'P', 'I'};
    char nodes[NUMA_LIST_BYTES], cpus[NUMA_LIST_BYTES], memory[NUMA_LIST_BYTES];
    if (!choice->bound) {
        snprintf(out, 256, "-");
        return;
    }
    snprintf(out, 256, "%s / %s / %s / %u / %c", numa_list(&choice->nodes, nodes),
             numa_list(&choice->cpus, cpus), numa_list(&choice->memory, memory), choice->ranks,
             policies[choice->policy]);
    assert_int_equal(choice->cpu_count, CPU_COUNT(&choice->cpus));
}

static void choices(void **state) {
    (void)state;
    static const struct {
        const struct tree *tree;
        uint32_t first_cpu, last_cpu; /* allowed */
        const char *flag;
        uint32_t tp;
        const char *expected[8]; /* by rank; what is not there is as the one before */
    } rows[] = {
        {&one, 0, 7, "auto", 1, {"-"}},
        {&one, 0, 7, "auto", 8, {"-"}},
        {&one, 0, 7, "0", 2, {"0 / 0-7 / 0 / 2 / P"}},
        {&one_and_far, 0, 7, "auto", 2, {"-"}},
        {&two, 0, 15, "off", 2, {"-"}},
        {&two, 0, 15, "auto", 2, {"0 / 0-7 / 0 / 1 / P", "1 / 8-15 / 1 / 1 / P"}},
        {&two, 0, 15, "auto", 1, {"0-1 / 0-15 / 0-1 / 1 / I"}},
        {&two,
         0,
         15,
         "auto",
         8,
         {"0 / 0-7 / 0 / 4 / P", "0 / 0-7 / 0 / 4 / P", "0 / 0-7 / 0 / 4 / P",
          "0 / 0-7 / 0 / 4 / P", "1 / 8-15 / 1 / 4 / P"}},
        {&two, 0, 15, "1", 4, {"1 / 8-15 / 1 / 4 / P"}},
        {&threads, 0, 15, "auto", 2, {"0 / 0-3,8-11 / 0 / 1 / P", "1 / 4-7,12-15 / 1 / 1 / P"}},
        {&three, 0, 23, "auto", 4, {"0-2 / 0-23 / 0-2 / 4 / I"}},
        {&four,
         0,
         15,
         "auto",
         4,
         {"0 / 0-3 / 0 / 1 / P", "1 / 4-7 / 1 / 1 / P", "2 / 8-11 / 2 / 1 / P",
          "3 / 12-15 / 3 / 1 / P"}},
        {&four, 0, 15, "auto", 2, {"0-1 / 0-7 / 0-1 / 1 / I", "2-3 / 8-15 / 2-3 / 1 / I"}},
        {&four,
         0,
         15,
         "auto",
         8,
         {"0 / 0-3 / 0 / 2 / P", "0 / 0-3 / 0 / 2 / P", "1 / 4-7 / 1 / 2 / P",
          "1 / 4-7 / 1 / 2 / P", "2 / 8-11 / 2 / 2 / P", "2 / 8-11 / 2 / 2 / P",
          "3 / 12-15 / 3 / 2 / P"}},
        {&six,
         0,
         23,
         "auto",
         4,
         {"0-2 / 0-11 / 0-2 / 2 / I", "0-2 / 0-11 / 0-2 / 2 / I", "3-5 / 12-23 / 3-5 / 2 / I"}},
        /* The mask leaves one node, or all of them, or a node a little, or too little. */
        {&two, 8, 15, "auto", 2, {"-"}},
        {&two, 8, 15, "1", 2, {"1 / 8-15 / 1 / 2 / P"}},
        {&two, 2, 13, "auto", 2, {"0 / 2-7 / 0 / 1 / P", "1 / 8-13 / 1 / 1 / P"}},
        {&two, 0, 12, "auto", 2, {"0 / 0-7 / 0 / 1 / P", "1 / 8-12 / 1 / 1 / P"}},
        {&two, 0, 11, "auto", 2, {"0-1 / 0-11 / 0-1 / 2 / I"}},
        {&two, 0, 8, "auto", 2, {"0-1 / 0-8 / 0-1 / 2 / I"}},
        {&four, 0, 7, "auto", 2, {"0 / 0-3 / 0 / 1 / P", "1 / 4-7 / 1 / 1 / P"}},
        {&four,
         2,
         13,
         "auto",
         4,
         {"0-1 / 2-7 / 0-1 / 2 / I", "0-1 / 2-7 / 0-1 / 2 / I", "2-3 / 8-13 / 2-3 / 2 / I"}},
        {&four,
         0,
         12,
         "auto",
         4,
         {"0-1 / 0-7 / 0-1 / 2 / I", "0-1 / 0-7 / 0-1 / 2 / I", "2-3 / 8-12 / 2-3 / 2 / I"}},
        /* Nodes of memory alone are nobody's; nodes without memory take what is near. */
        {&far_memory, 0, 15, "auto", 2, {"0 / 0-7 / 0 / 1 / P", "1 / 8-15 / 1 / 1 / P"}},
        {&bare, 0, 15, "auto", 2, {"0 / 0-7 / 0 / 1 / P", "1 / 8-15 / none / 1 / L"}},
        {&bare, 0, 15, "auto", 1, {"0-1 / 0-15 / 0 / 1 / P"}},
        {&holes, 0, 29, "auto", 2, {"0 / 0-3 / 0 / 1 / P", "2 / 8-11 / 2 / 1 / P"}},
        {&holes, 0, 29, "2", 1, {"2 / 8-11 / 2 / 1 / P"}},
        {&odd_lists, 0, 15, "auto", 2, {"0 / 0-7 / 0 / 1 / P", "1 / 8-15 / 1 / 1 / P"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct numa_allowed allowed = allow(rows[i].first_cpu, rows[i].last_cpu);
        const char *expected = NULL;
        plant(rows[i].tree);
        for (uint32_t rank = 0; rank < rows[i].tp; rank++) {
            const struct numa_request request = ask(rows[i].flag, rank, rows[i].tp);
            struct numa_choice choice;
            struct error err = {.text = ""};
            char found[256];
            if (rows[i].expected[rank]) expected = rows[i].expected[rank];
            enum status status = numa_plan(root, &allowed, &request, &choice, &err);
            if (status != STATUS_OK) fail_msg("row %zu, rank %u: %s", i, rank, err.text);
            assert_false(choice.troubled);
            describe(&choice, found);
            if (strcmp(found, expected) != 0)
                fail_msg("row %zu, rank %u: %s; expected: %s", i, rank, found, expected);
            if (choice.bound) continue;
            assert_true(CPU_EQUAL(&choice.cpus, &allowed.cpus));
            assert_int_equal(choice.ranks, rows[i].tp);
            assert_string_equal(choice.reason,
                                request.mode == NUMA_AUTO ? "the CPUs are of one node" : "");
        }
        fell(rows[i].tree);
    }
}

/* The control group may leave us a node's CPUs and not its memory. */
static void memory_that_is_not_for_us(void **state) {
    (void)state;
    struct numa_allowed allowed = allow(0, 15);
    struct numa_choice choice;
    struct error err;
    char found[256];
    CPU_CLR(0, &allowed.memory);
    plant(&two);
    struct numa_request request = ask("auto", 0, 2);
    assert_int_equal(numa_plan(root, &allowed, &request, &choice, &err), STATUS_OK);
    describe(&choice, found);
    assert_string_equal(found, "0 / 0-7 / none / 1 / L");
    assert_string_equal(choice.reason, "no memory there is for us");
    request = ask("auto", 1, 2);
    assert_int_equal(numa_plan(root, &allowed, &request, &choice, &err), STATUS_OK);
    describe(&choice, found);
    assert_string_equal(found, "1 / 8-15 / 1 / 1 / P");
    assert_true(choice.memory_bytes == UINT64_C(32) << 30);
    fell(&two);
}

/* All ranks of a group must come to the same groups: between them they use each CPU, and as many
 * ranks as a choice says share it. */
static void ranks_agree(void **state) {
    (void)state;
    static const struct tree *const trees[] = {&two, &three, &four, &six, &far_memory, &holes};
    for (size_t t = 0; t < sizeof trees / sizeof *trees; t++) {
        plant(trees[t]);
        for (uint32_t tp = 1; tp <= 8; tp *= 2) {
            const struct numa_allowed allowed = allow(0, 29);
            struct numa_choice choice[8];
            struct error err;
            for (uint32_t rank = 0; rank < tp; rank++) {
                const struct numa_request request = ask("auto", rank, tp);
                assert_int_equal(numa_plan(root, &allowed, &request, &choice[rank], &err),
                                 STATUS_OK);
                assert_true(choice[rank].bound);
            }
            cpu_set_t all;
            CPU_ZERO(&all);
            for (uint32_t a = 0; a < tp; a++) {
                uint32_t same = 0;
                for (uint32_t b = 0; b < tp; b++) {
                    cpu_set_t common;
                    CPU_AND(&common, &choice[a].cpus, &choice[b].cpus);
                    bool is_same = CPU_EQUAL(&choice[a].cpus, &choice[b].cpus);
                    assert_true(is_same || CPU_COUNT(&common) == 0);
                    same += is_same;
                }
                assert_int_equal(same, choice[a].ranks);
                CPU_OR(&all, &all, &choice[a].cpus);
            }
            for (int i = 0; i < TREE_NODES && trees[t]->node[i].cpulist; i++) {
                struct numa_nodes nodes;
                assert_int_equal(numa_read(root, &allowed, &nodes, &err), STATUS_OK);
                cpu_set_t rest;
                CPU_AND(&rest, &nodes.node[i].cpus, &all);
                assert_true(CPU_EQUAL(&rest, &nodes.node[i].cpus));
            }
        }
        fell(trees[t]);
    }
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const struct tree *tree;
        uint32_t first_cpu, last_cpu;
        const char *flag, *text;
    } rows[] = {
        {&two, 0, 15, "2",
         "--numa: found 2, and this machine has no such node; accepted: auto, off, nodes "
         "with CPUs for us (0-1)"},
        {&holes, 0, 30, "1",
         "--numa: found 1, and this machine has no such node; accepted: auto, off, nodes "
         "with CPUs for us (0,2,7)"},
        {&two, 8, 15, "0",
         "--numa: found 0, a node with none of the CPUs we may use (8-15); accepted: auto, off, "
         "nodes "
         "with CPUs for us (1)"},
        {&far_memory, 0, 15, "2",
         "--numa: found 2, a node with none of the CPUs we may use (0-15); accepted: auto, off, "
         "nodes "
         "with CPUs for us (0-1)"},
        {&two, 20, 21, "0",
         "--numa: found 0, a node with none of the CPUs we may use (20-21); accepted: auto, off, "
         "nodes with CPUs for us (none)"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct numa_allowed allowed = allow(rows[i].first_cpu, rows[i].last_cpu);
        const struct numa_request request = ask(rows[i].flag, 0, 2);
        struct numa_choice choice;
        struct error err;
        plant(rows[i].tree);
        assert_int_equal(numa_plan(root, &allowed, &request, &choice, &err),
                         STATUS_FAILED_PRECONDITION);
        assert_string_equal(err.text, rows[i].text);
        fell(rows[i].tree);
    }
}

/* ============================== files that say nothing ======================================== */

static void malformed_files(void **state) {
    (void)state;
    static char long_list[20000];
    memset(long_list, '1', sizeof long_list - 1);
    static const struct {
        struct tree tree;
        const char *gone; /* a file that is taken away again */
        const char *text; /* what is said, after the folder's name */
    } rows[] = {
        {{"", {{0}}}, NULL, NULL}, /* no node is on line */
        {{"0-\n", {{0}}}, NULL, "/online: found \"0-\", accepted: as 0-3,8"},
        {{"1-0\n", {{0}}}, NULL, "/online: found \"1-0\", accepted: as 0-3,8"},
        {{"0,,1\n", {{0}}}, NULL, "/online: found \"0,,1\", accepted: as 0-3,8"},
        {{"0-1,\n", {{0}}}, NULL, "/online: found \"0-1,\", accepted: as 0-3,8"},
        {{"zero\n", {{0}}}, NULL, "/online: found \"zero\", accepted: as 0-3,8"},
        {{"0 1\n", {{0}}}, NULL, "/online: found \"0 1\", accepted: as 0-3,8"},
        {{"-1\n", {{0}}}, NULL, "/online: found \"-1\", accepted: as 0-3,8"},
        {{"0x1\n", {{0}}}, NULL, "/online: found \"0x1\", accepted: as 0-3,8"},
        {{"0\n1\n", {{0}}}, NULL, "/online: found \"0?1\", accepted: as 0-3,8"},
        {{"0-99999999999999999999\n", {{0}}},
         NULL,
         "/online: found \"0-99999999999999999999\", accepted: as 0-3,8"},
        {{"0-1\n", {{0, "0-3\n", 1}}}, NULL, "/node1/cpulist: No such file or directory"},
        {{"0\n", {{0, "0-3:2/4\n", 1}}},
         NULL,
         "/node0/cpulist: found \"0-3:2/4\", accepted: as 0-3,8"},
        {{"0\n", {{0, long_list, 1}}}, NULL, "/node0/cpulist: longer than 8191 bytes"},
        {{"0\n", {{0, "0-3\n", 1}}}, "meminfo", "/node0/meminfo: No such file or directory"},
        {{NULL, {{0}}}, NULL, "/online: No such file or directory"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct numa_allowed allowed = allow(0, 15);
        struct numa_choice choice;
        struct error err;
        char path[128], expected[256];
        /* Of a node that should be there. */
        bool is_missing = rows[i].tree.online && rows[i].text && strstr(rows[i].text, "No such");
        plant(&rows[i].tree);
        node_path(path, 0, rows[i].gone ? rows[i].gone : "");
        if (rows[i].gone) assert_int_equal(unlink(path), 0);

        struct numa_request request = ask("auto", 1, 2);
        assert_int_equal(numa_plan(root, &allowed, &request, &choice, &err), STATUS_OK);
        assert_false(choice.bound);
        assert_true(CPU_EQUAL(&choice.cpus, &allowed.cpus));
        /* A kernel without nodes is nothing to warn of. */
        assert_int_equal(choice.troubled, rows[i].text && rows[i].tree.online);
        snprintf(expected, sizeof expected, "%s%s%s", is_missing ? "on line: " : "",
                 rows[i].text ? root : "", rows[i].text ? rows[i].text : "");
        assert_string_equal(choice.reason, expected);

        request = ask("0", 0, 2);
        assert_int_equal(numa_plan(root, &allowed, &request, &choice, &err),
                         STATUS_FAILED_PRECONDITION);
        assert_non_null(strstr(err.text, "--numa: found 0, and "));
        assert_non_null(strstr(err.text, "accepted: auto, off"));
        if (rows[i].text) assert_non_null(strstr(err.text, expected));
        fell(&rows[i].tree);
    }
}

static void more_nodes_than_we_hold(void **state) {
    (void)state;
    const struct numa_allowed allowed = allow(0, 15);
    static const struct tree none = {"", {{0}}};
    struct numa_nodes nodes;
    struct error err;
    for (int number = 0; number <= (int)NUMA_NODES_MAX; number++)
        plant_node(&(struct tree_node){number, "\n", 1});
    plant_online("0-63\n");
    assert_int_equal(numa_read(root, &allowed, &nodes, &err), STATUS_OK);
    assert_int_equal(nodes.count, NUMA_NODES_MAX);
    plant_online("0-64\n");
    assert_int_equal(numa_read(root, &allowed, &nodes, &err), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "/online: more than 64 nodes"));
    for (int number = 0; number <= (int)NUMA_NODES_MAX; number++)
        fell_node(number);
    fell(&none);
}

static void memory_that_is_not_told(void **state) {
    (void)state;
    const struct numa_allowed allowed = allow(0, 15);
    struct numa_nodes nodes;
    struct error err;
    char path[128];
    plant(&one);
    node_path(path, 0, "meminfo");
    static const char *const texts[] = {"", "Node 0 MemFree: 1 kB\n", "Node 0 MemTotal: much\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_file(path, texts[i]);
        assert_int_equal(numa_read(root, &allowed, &nodes, &err), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(err.text, "/node0/meminfo: says nothing of MemTotal"));
    }
    write_file(path, "Node 0 MemTotal:       7 kB\n");
    assert_int_equal(numa_read(root, &allowed, &nodes, &err), STATUS_OK);
    assert_true(nodes.node[0].memory_bytes == 7 * 1024);
    fell(&one);
}

static void placement(void **state) {
    (void)state;
    const struct numa_allowed allowed = allow(0, 15);
    const struct numa_request request = ask("1", 0, 1);
    struct numa_choice choice;
    struct numa_placement found;
    struct error err;
    char path[128];
    plant(&two);
    assert_int_equal(numa_plan(root, &allowed, &request, &choice, &err), STATUS_OK);
    snprintf(path, sizeof path, "%s/numa_maps", root);
    assert_false(numa_placement(path, &choice, &found));
    write_file(path,
               "7f0000000000 prefer:1 anon=7 dirty=7 active=0 N0=2 N1=5 kernelpagesize_kB=4\n"
               "7f0000100000 prefer:1\n"
               "7f0000200000 prefer:1 huge anon=3 dirty=3 N1=3 kernelpagesize_kB=2048\n"
               "7f0000300000 default file=/a\\040b\\040N0=9 mapped=9 N0=9 kernelpagesize_kB=4\n"
               "7f0000400000 prefer:1 file=/memfd:espalier-comm N0=9 kernelpagesize_kB=4\n"
               "7f0000500000 prefer:1 heap anon=1 dirty=1 N11=1 kernelpagesize_kB=64\n");
    assert_true(numa_placement(path, &choice, &found));
    assert_true(found.near_bytes == 5 * 4096 + 3 * (UINT64_C(2) << 20));
    assert_true(found.far_bytes == 2 * 4096 + 65536);
    assert_int_equal(unlink(path), 0);
    fell(&two);
}

static void lists(void **state) {
    (void)state;
    cpu_set_t set;
    char text[NUMA_LIST_BYTES];
    CPU_ZERO(&set);
    assert_string_equal(numa_list(&set, text), "none");
    CPU_SET(0, &set);
    CPU_SET(2, &set);
    CPU_SET(3, &set);
    CPU_SET(1023, &set);
    assert_string_equal(numa_list(&set, text), "0,2-3,1023");
    for (uint32_t i = 0; i < CPU_SETSIZE; i += 2)
        CPU_SET(i, &set);
    numa_list(&set, text);
    assert_true(strlen(text) < NUMA_LIST_BYTES);
    assert_string_equal(text + strlen(text) - 4, ",...");
}

/* ============================== made so ======================================================= */

#define CPU_QUOTA_PATH "/sys/fs/cgroup/cpu.max"

static void shares(void **state) {
    (void)state;
    if (access(CPU_QUOTA_PATH, F_OK) != 0) {
        assert_int_equal(cpus_share(16, 2, 8), 8); /* of a node of two ranks, out of eight */
        assert_int_equal(cpus_share(17, 4, 4), 4);
    }
    assert_int_equal(cpus_share(1, 8, 8), 1);
    assert_int_equal(cpus_share(0, 1, 1), 1);
}

/* In a child, since it cannot be undone; the child's exit code is the line that failed. */
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) _exit(__LINE__ % 200 + 1);                                               \
    } while (0)

static void in_a_child(void (*check)(void)) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        check();
        _exit(0);
    }
    int outcome;
    assert_int_equal(waitpid(pid, &outcome, 0), pid);
    if (!WIFEXITED(outcome) || WEXITSTATUS(outcome) != 0)
        fail_msg("the child's check ended with %d (line modulo 200, and 1)", WEXITSTATUS(outcome));
}

/* The first node with CPUs and memory of the machine we are on, with all but one of its CPUs taken
 * away: binding then shows, on a machine of one node as well. */
static bool narrow_choice(struct numa_choice *choice) {
    const struct numa_allowed allowed = numa_allowed();
    struct numa_nodes nodes;
    struct error err;
    if (numa_read(NUMA_ROOT, &allowed, &nodes, &err) != STATUS_OK) return false;
    for (uint32_t i = 0; i < nodes.count; i++) {
        struct numa_node *node = &nodes.node[i];
        if (CPU_COUNT(&node->cpus) == 0 || node->memory_bytes == 0) continue;
        uint32_t last = CPU_SETSIZE - 1;
        while (!CPU_ISSET(last, &node->cpus))
            last--;
        CPU_ZERO(&node->cpus);
        CPU_SET(last, &node->cpus);
        const struct numa_request request = {
            .mode = NUMA_NODE, .node = node->number, .rank = 0, .tp = 4};
        return numa_choose(&nodes, &allowed, &request, choice, &err) == STATUS_OK;
    }
    return false;
}

static long get_policy(int *mode, cpu_set_t *memory, void *address, unsigned long flags) {
    return syscall(SYS_get_mempolicy, mode, memory, memory ? CPU_SETSIZE + 1ul : 0ul, address,
                   flags);
}

static bool may_choose_memory; /* containers may not */

/* Of a thread started after the binding. */
struct seen {
    cpu_set_t cpus;
    int mode;
};

static void *look_around(void *argument) {
    struct seen *seen = argument;
    CPU_ZERO(&seen->cpus);
    seen->mode = -1;
    (void)sched_getaffinity(0, sizeof seen->cpus, &seen->cpus);
    if (may_choose_memory) (void)get_policy(&seen->mode, NULL, NULL, 0);
    return NULL;
}

static void check_bound(void) {
    struct numa_choice choice;
    struct error err;
    cpu_set_t cpus, memory;
    int mode = -1;
    EXPECT(narrow_choice(&choice));
    EXPECT(choice.policy == NUMA_PREFERRED && choice.ranks == 4);
    EXPECT(numa_bind(&choice, &err) == STATUS_OK);
    EXPECT(sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_EQUAL(&cpus, &choice.cpus));
    pthread_t thread;
    struct seen seen;
    EXPECT(pthread_create(&thread, NULL, look_around, &seen) == 0);
    EXPECT(pthread_join(thread, NULL) == 0 && CPU_EQUAL(&seen.cpus, &choice.cpus));
    if (!may_choose_memory) {
        EXPECT(choice.policy == NUMA_LOCAL && !choice.troubled);
        return;
    }
    EXPECT(choice.policy == NUMA_PREFERRED && !choice.troubled && seen.mode == MPOL_PREFERRED);
    CPU_ZERO(&memory);
    EXPECT(get_policy(&mode, &memory, NULL, 0) == 0);
    EXPECT(mode == MPOL_PREFERRED && CPU_EQUAL(&memory, &choice.memory));
    /* What is touched from now on lies there. */
    size_t bytes = 1u << 20;
    char *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    int node = -1;
    EXPECT(pages != MAP_FAILED);
    EXPECT(get_policy(&node, NULL, pages, MPOL_F_NODE | MPOL_F_ADDR) == 0);
    EXPECT(node >= 0 && CPU_ISSET((size_t)node, &choice.memory));
}

static void check_interleaved(void) {
    struct numa_choice choice;
    struct error err;
    cpu_set_t memory;
    int mode = -1;
    EXPECT(narrow_choice(&choice));
    choice.policy = NUMA_INTERLEAVED;
    EXPECT(numa_bind(&choice, &err) == STATUS_OK);
    if (!may_choose_memory) return;
    CPU_ZERO(&memory);
    EXPECT(get_policy(&mode, &memory, NULL, 0) == 0);
    EXPECT(mode == MPOL_INTERLEAVE && CPU_EQUAL(&memory, &choice.memory));
}

static void check_unbound(void) {
    const struct numa_allowed allowed = numa_allowed();
    struct numa_choice choice;
    struct error err;
    cpu_set_t cpus;
    int mode = -1;
    static const struct numa_request request = {.mode = NUMA_OFF, .tp = 2};
    EXPECT(numa_plan(NUMA_ROOT, &allowed, &request, &choice, &err) == STATUS_OK);
    EXPECT(numa_bind(&choice, &err) == STATUS_OK);
    EXPECT(sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_EQUAL(&cpus, &allowed.cpus));
    if (may_choose_memory) EXPECT(get_policy(&mode, NULL, NULL, 0) == 0 && mode == MPOL_DEFAULT);
}

/* A CPU that is not there: a node that was asked for is refused, auto goes on without. */
static void check_cpus_that_cannot_be_had(void) {
    struct numa_choice choice;
    struct error err;
    EXPECT(narrow_choice(&choice));
    CPU_ZERO(&choice.cpus);
    CPU_SET(CPU_SETSIZE - 1, &choice.cpus);
    EXPECT(numa_bind(&choice, &err) == STATUS_FAILED_PRECONDITION);
    EXPECT(strstr(err.text, "--numa: found ") == err.text);
    EXPECT(strstr(err.text, "accepted: auto, off") != NULL);
    choice.mode = NUMA_AUTO;
    EXPECT(numa_bind(&choice, &err) == STATUS_OK);
    EXPECT(!choice.bound && choice.troubled && choice.policy == NUMA_LOCAL);
    EXPECT(strstr(choice.reason, "sched_setaffinity: ") == choice.reason);
}

/* Two ranks with CPUs of their own spin, though the machine's four do not fit one node's. */
static void check_spin_budget(void) {
    struct numa_choice choice;
    struct error err;
    EXPECT(narrow_choice(&choice));
    choice.ranks = 1;
    EXPECT(cpus_spin_budget(1, CPU_SETSIZE) == 0);
    EXPECT(numa_bind(&choice, &err) == STATUS_OK);
    if (access(CPU_QUOTA_PATH, F_OK) != 0) EXPECT(cpus_spin_budget(1, CPU_SETSIZE) > 0);
    EXPECT(cpus_spin_budget(2, 1) == 0);
}

/* Both calls fail, as in a container under a usual profile. */
static bool forbid_memory_policies(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_set_mempolicy, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_get_mempolicy, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

/* The CPUs are bound all the same. Only memory of several nodes is then not where it should be. */
static void check_memory_that_may_not_be_chosen(void) {
    struct numa_choice choice;
    struct error err;
    cpu_set_t cpus;
    if (!forbid_memory_policies()) return;
    static const enum numa_policy policies[] = {NUMA_PREFERRED, NUMA_INTERLEAVED};
    for (size_t i = 0; i < 2; i++) {
        EXPECT(i > 0 || narrow_choice(&choice));
        choice.policy = policies[i];
        EXPECT(numa_bind(&choice, &err) == STATUS_OK);
        EXPECT(choice.bound && choice.policy == NUMA_LOCAL);
        EXPECT(choice.troubled == (policies[i] == NUMA_INTERLEAVED));
        EXPECT(strcmp(choice.reason, "set_mempolicy: Operation not permitted") == 0);
        EXPECT(sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_EQUAL(&cpus, &choice.cpus));
    }
}

static void binding(void **state) {
    (void)state;
    struct numa_choice choice;
    if (!narrow_choice(&choice)) skip(); /* a kernel without nodes */
    int mode;
    may_choose_memory = get_policy(&mode, NULL, NULL, 0) == 0;
    in_a_child(check_bound);
    in_a_child(check_interleaved);
    in_a_child(check_unbound);
    in_a_child(check_cpus_that_cannot_be_had);
    in_a_child(check_spin_budget);
    in_a_child(check_memory_that_may_not_be_chosen);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices),
        cmocka_unit_test(memory_that_is_not_for_us),
        cmocka_unit_test(ranks_agree),
        cmocka_unit_test(refusals),
        cmocka_unit_test(malformed_files),
        cmocka_unit_test(memory_that_is_not_told),
        cmocka_unit_test(more_nodes_than_we_hold),
        cmocka_unit_test(placement),
        cmocka_unit_test(lists),
        cmocka_unit_test(shares),
        cmocka_unit_test(binding),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
