/* Who a worker is, by flags and by the environment of what started it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "worker_config.h"

static const char *const *variables; /* "NAME=VALUE" ..., NULL */

static const char *lookup(const char *name) {
    size_t bytes = strlen(name);
    for (int i = 0; i < 8 && variables[i]; i++)
        if (strncmp(variables[i], name, bytes) == 0 && variables[i][bytes] == '=')
            return variables[i] + bytes + 1;
    return NULL;
}

static void identities(void **state) {
    (void)state;
    static const struct {
        const char *variable[8];
        int rank_flag, tp_flag; /* -1: not given */
        int rank, tp;           /* expected; rank -1: refused */
        const char *parts[3];   /* of the refusal */
    } rows[] = {
        {{NULL}, -1, -1, 0, 1, {NULL}},
        {{NULL}, 1, 2, 1, 2, {NULL}},
        {{NULL}, -1, 2, -1, 0, {"--rank: found nothing", "0 to 1"}},
        {{NULL}, 1, -1, -1, 0, {"--rank: found 1", "below 1"}},
        {{NULL}, 7, 8, 7, 8, {NULL}},
        {{NULL}, 2, 2, -1, 0, {"--rank: found 2", "below 2"}},
        {{"RANK=1", "WORLD_SIZE=4"}, -1, -1, 1, 4, {NULL}},
        {{"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=8"}, -1, -1, 2, 8, {NULL}},
        {{"PMI_RANK=3", "PMI_SIZE=4"}, -1, -1, 3, 4, {NULL}},
        {{"PMIX_RANK=1"}, -1, 4, 1, 4, {NULL}},
        {{"PMIX_RANK=1", "PMI_RANK=1", "PMI_SIZE=4"}, -1, -1, 1, 4, {NULL}},
        {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "PMIX_RANK=1"},
         -1,
         -1,
         -1,
         0,
         {"OMPI_COMM_WORLD_RANK is 0", "PMIX_RANK is 1"}},
        {{"PMIX_RANK=1"}, -1, -1, -1, 0, {"PMIX_RANK: found 1", "below 1"}},
        {{"SLURM_PROCID=0", "SLURM_NTASKS=2"}, -1, -1, 0, 2, {NULL}},
        {{"SLURM_PROCID=1"}, -1, 2, 1, 2, {NULL}},
        {{"LWS_WORKER_INDEX=5", "LWS_GROUP_SIZE=8"}, -1, -1, 5, 8, {NULL}},
        {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "LWS_WORKER_INDEX=0", "LWS_GROUP_SIZE=2"},
         -1,
         -1,
         -1,
         0,
         {"SLURM_PROCID is 1", "LWS_WORKER_INDEX is 0"}},
        {{"RANK=1", "WORLD_SIZE=2", "SLURM_PROCID=1", "SLURM_NTASKS=2"}, -1, 2, 1, 2, {NULL}},
        /* A job's size without its rank is not about this process. */
        {{"SLURM_NTASKS=4"}, -1, -1, 0, 1, {NULL}},
        {{"WORLD_SIZE=4"}, 0, 2, 0, 2, {NULL}},
        /* Flags win over everything, right or wrong. */
        {{"RANK=x", "WORLD_SIZE=y"}, 1, 2, 1, 2, {NULL}},
        {{"RANK=5", "WORLD_SIZE=8"}, 0, 1, 0, 1, {NULL}},
        /* Two opinions. */
        {{"RANK=0", "WORLD_SIZE=2", "SLURM_PROCID=1", "SLURM_NTASKS=2"},
         -1,
         -1,
         -1,
         0,
         {"RANK is 0", "SLURM_PROCID is 1"}},
        {{"RANK=0", "WORLD_SIZE=2", "PMI_RANK=0", "PMI_SIZE=4"},
         -1,
         -1,
         -1,
         0,
         {"WORLD_SIZE is 2", "PMI_SIZE is 4"}},
        {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4"},
         -1,
         8,
         -1,
         0,
         {"--tp is 8", "OMPI_COMM_WORLD_SIZE is 4"}},
        /* Nonsense. */
        {{"RANK=one"}, -1, -1, -1, 0, {"RANK: found \"one\""}},
        {{"RANK="}, -1, -1, -1, 0, {"RANK: found \"\""}},
        {{"RANK=-1"}, -1, -1, -1, 0, {"RANK: found \"-1\""}},
        {{"RANK=99999999999999999999"}, -1, -1, -1, 0, {"RANK: found \"99999"}},
        {{"RANK=2", "WORLD_SIZE=2"}, -1, -1, -1, 0, {"RANK: found 2", "below 2", "WORLD_SIZE"}},
        {{"RANK=0", "WORLD_SIZE=16"}, -1, -1, -1, 0, {"WORLD_SIZE: found 16", "1 to 8"}},
        {{"RANK=0", "WORLD_SIZE=0"}, -1, -1, -1, 0, {"WORLD_SIZE: found 0", "1 to 8"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        variables = rows[i].variable;
        struct worker_identity identity = {
            .has_rank = rows[i].rank_flag >= 0,
            .has_tp = rows[i].tp_flag >= 0,
            .rank = rows[i].rank_flag >= 0 ? (uint32_t)rows[i].rank_flag : 0,
            .tp = rows[i].tp_flag >= 0 ? (uint32_t)rows[i].tp_flag : 1};
        struct error err = {.text = ""};
        enum status status = worker_config_identify(lookup, &identity, &err);
        bool good = rows[i].rank >= 0;
        bool right = good ? status == STATUS_OK && identity.rank == (uint32_t)rows[i].rank &&
                                identity.tp == (uint32_t)rows[i].tp
                          : status == STATUS_INVALID_ARGUMENT;
        for (int p = 0; p < 3 && rows[i].parts[p]; p++)
            right = right && strstr(err.text, rows[i].parts[p]);
        if (!right)
            fail_msg("row %zu: status %d, rank %u of %u, \"%s\"", i, (int)status, identity.rank,
                     identity.tp, err.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(identities)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
