/* espalier-worker: holds one rank's part of the model and computes what the coordinator plans. */
#include <inttypes.h>
#include <stdio.h>

#include "checkpoint.h"
#include "control.h"
#include "gpu.h"
#include "options.h"
#include "process.h"
#include "worker_config.h"

#define FILES_NEEDED 64u /* besides those of the checkpoint, which are asked for one by one */

static int exit_code_of(enum status status) {
    switch (status) {
    case STATUS_UNAVAILABLE:
    case STATUS_RESOURCE_EXHAUSTED: return EXIT_CODE_TEMPORARY;
    case STATUS_PERMISSION_DENIED: return EXIT_CODE_PERMISSION;
    default: return EXIT_CODE_CONFIG;
    }
}

int main(int argc, char **argv) {
    process_fill_standard_streams();
    struct worker_config config;
    int exit_code;
    if (!worker_config_parse(argc, argv, &config, &exit_code)) return exit_code;
    log_init("worker", (int)config.rank, "-"); /* the boot is the coordinator's, told in WELCOME */
    log_set_level(config.log_level);
    process_let_writes_fail();
    struct error err;
    struct checkpoint checkpoint;
    struct checkpoint_drafter drafter = {.tensors = NULL};
    enum status status = process_require_files(FILES_NEEDED, &err);
    /* Before there is a thread, or memory worth the name. */
    if (status == STATUS_OK) status = numa_bind(&config.numa, &err);
    if (status == STATUS_OK && config.cuda) status = gpu_open(config.gpu, &config.device, &err);
    if (status != STATUS_OK) return options_refuse("espalier-worker", EXIT_CODE_CONFIG, &err);
    if (config.device)
        log_info("device", "name=\"%s\" number=%u free_bytes=%" PRIu64, config.device->name,
                 config.gpu, config.device->free_bytes);
    status = checkpoint_open(config.model_path, config.tp, &checkpoint, &err);
    if (status != STATUS_OK) return options_refuse("espalier-worker", exit_code_of(status), &err);
    const char *path = config.draft_model_path;
    if (path) status = checkpoint_open_drafter(path, &checkpoint.spec, config.tp, &drafter, &err);
    if (status == STATUS_OK)
        status = control_run(&config, &checkpoint, path ? &drafter : NULL, &exit_code, &err);
    else
        error_wrap(&err, status, "--speculative-draft-model-path");
    if (path) checkpoint_close_drafter(&drafter);
    checkpoint_close(&checkpoint);
    device_close(&config.device);
    if (status != STATUS_OK) return options_refuse("espalier-worker", exit_code_of(status), &err);
    return exit_code;
}
