#include "group_flags.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "shipped.h"

const char *group_flags_default_model(void) {
    const char *path = getenv("ESPALIER_MODEL_PATH");
    return path && *path ? path : shipped_path(SHIPPED_MODEL);
}

/* All ranks get the same flags, and a GPU holds one of them. */
enum status group_flags_check(const struct group_flags *flags, struct error *err) {
    if (flags->tp == 1 || !strchr(flags->device, ':')) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--device: found %s for %u ranks, accepted: cuda, a GPU each; "
                     "CUDA_VISIBLE_DEVICES says which",
                     flags->device, flags->tp);
}

const char *group_flags_given(const struct options_program *program) {
    for (uint32_t i = 0; i < program->option_count; i++)
        if (program->option[i].given && program->option[i].scope) return program->option[i].name;
    return NULL;
}

static bool was_given(const struct options_program *program, const char *name) {
    for (uint32_t i = 0; i < program->option_count; i++)
        if (strcmp(program->option[i].name, name) == 0) return program->option[i].given != NULL;
    return false;
}

static void append(char **list, uint32_t *count, const char *name, const char *value) {
    CHECK(*count < LAUNCHER_ARGS_MAX);
    CHECK(asprintf(&list[*count], "%s=%s", name, value) > 0);
    (*count)++;
}

static void append_both(struct group_arguments *out, const char *name, const char *value) {
    append(out->coordinator, &out->coordinator_count, name, value);
    append(out->worker, &out->worker_count, name, value);
}

/* Do both lead to the same folder? */
static bool is_same_folder(const char *a, const char *b) {
    char *left = realpath(a, NULL), *right = realpath(b, NULL);
    bool same = left && right && strcmp(left, right) == 0;
    free(left);
    free(right);
    return same;
}

struct group_speculation group_flags_speculation(const char *model, const char *drafter,
                                                 const char *algorithm) {
    bool wants_drafter = !algorithm || strcmp(algorithm, "dflash") == 0 ||
                         strcmp(algorithm, "auto") == 0;
    if (!drafter && wants_drafter && is_same_folder(model, shipped_path(SHIPPED_MODEL)))
        drafter = shipped_path(SHIPPED_DRAFTER);
    if (!algorithm) algorithm = drafter ? "auto" : "none";
    return (struct group_speculation){.drafter = drafter, .algorithm = algorithm};
}

static void append_speculation(const struct group_flags *flags, const char *model,
                               struct group_arguments *out) {
    struct group_speculation speculation = group_flags_speculation(model, flags->draft_model_path,
                                                                   flags->speculative_algorithm);
    if (!flags->draft_model_path && speculation.drafter)
        append(out->worker, &out->worker_count, "--speculative-draft-model-path",
               speculation.drafter);
    if (!flags->speculative_algorithm)
        append(out->coordinator, &out->coordinator_count, "--speculative-algorithm",
               speculation.algorithm);
}

void group_flags_arguments(const struct options_program *program, const struct group_flags *flags,
                           const char *default_log_level, struct group_arguments *out) {
    *out = (struct group_arguments){0};
    out->coordinator_count = options_forward(program, FLAG_COORDINATOR, out->coordinator,
                                             LAUNCHER_ARGS_MAX);
    out->worker_count = options_forward(program, FLAG_WORKER, out->worker, LAUNCHER_ARGS_MAX);
    const char *model = flags->model_path ? flags->model_path : group_flags_default_model();
    if (!flags->model_path) append_both(out, "--model-path", model);
    append_speculation(flags, model, out);
    if (!was_given(program, "--tp")) append_both(out, "--tp", "1");
    if (!was_given(program, "--log-level")) append_both(out, "--log-level", default_log_level);
}

void group_flags_free(struct group_arguments *arguments) {
    for (uint32_t i = 0; i < arguments->coordinator_count; i++)
        free(arguments->coordinator[i]);
    for (uint32_t i = 0; i < arguments->worker_count; i++)
        free(arguments->worker[i]);
}
