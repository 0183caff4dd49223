/* What a worker was asked to be: its command line, and for its rank the environment of whatever
 * started it.
 *
 *   rank from   1. --rank                                   5. PMI_RANK, PMI_SIZE
 *               2. RANK, WORLD_SIZE                         6. SLURM_PROCID, SLURM_NTASKS
 *               3. OMPI_COMM_WORLD_RANK, ..._SIZE           7. LWS_WORKER_INDEX, LWS_GROUP_SIZE
 *               4. PMIX_RANK
 *
 * With --rank the environment is not looked at: a launcher inside a batch job knows better than
 * the job's variables. Without it the first source that is there gives the rank, and all that are
 * there must agree, with each other and with --tp: two opinions on who a process is are refused
 * (exit code 78), because a group with a rank twice would wait for ever.
 */
#ifndef ESPALIER_WORKER_CONFIG_H
#define ESPALIER_WORKER_CONFIG_H

#include "base/log.h"
#include "device.h"
#include "numa.h"
#include "run_dir.h"

struct worker_config {
    struct run_dir run_dir;
    char endpoint[RUN_DIR_ENDPOINT_MAX]; /* the coordinator's, for workers */
    const char *curve_keys;              /* a folder; NULL: none */
    const char *probe_address;
    const char *model_path;
    const char *draft_model_path; /* NULL: no drafter */
    uint32_t draft_window;        /* 0: all of the context */
    uint32_t rank, tp;
    uint32_t threads;
    struct numa_choice numa; /* to be bound */
    bool cuda;               /* compute on a GPU, of this number: */
    uint32_t gpu;
    struct device *device;       /* it, once main has opened it; NULL: the CPU */
    uint64_t device_bytes;       /* that this rank has; 0: as much as the machine */
    const char *log_dir;         /* NULL: the run directory */
    uint32_t linger_ms;          /* outlive the coordinator so long */
    uint32_t connect_timeout_ms; /* to find the first coordinator */
    enum log_level log_level;
};

/* False: the program ends with *exit_code_out, and has said why. Strings are argv's. */
bool worker_config_parse(int argc, char *const *argv, struct worker_config *config_out,
                         int *exit_code_out);

struct worker_identity {
    bool has_rank, has_tp; /* in: given as flags */
    uint32_t rank, tp;     /* in: the flags' values; out: who this process is */
};

/* getenv, or a test's. NULL: not set. */
typedef const char *worker_config_lookup_fn(const char *name);

/* INVALID_ARGUMENT names both sources and both values. */
enum status worker_config_identify(worker_config_lookup_fn *lookup,
                                   struct worker_identity *identity, struct error *err) MUST_USE;

#endif
