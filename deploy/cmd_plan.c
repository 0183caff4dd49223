#include "cmd_plan.h"

#include <stdio.h>
#include <string.h>

#include "checkpoint.h"
#include "flags.h"
#include "group_flags.h"
#include "plan_view.h"
#include "printed.h"

#define PROGRAM_NAME "espalier plan"

struct raw_flags {
    const char *model_path, *draft_path;
    const char *device, *kv_dtype, *draft_pricing, *algorithm;
    const char *want_text, *calibrate;
    struct plan_want want; /* what the text says */
    bool json;
};

static enum status load_model(const char *path, struct plan_case *plan_case,
                              struct safetensors **tensors_out, struct error *err) {
    enum status status = model_spec_load(path, &plan_case->spec, err);
    if (status != STATUS_OK) return error_wrap(err, status, "--model-path");
    status = safetensors_open(path, tensors_out, err);
    if (status == STATUS_NOT_FOUND) return STATUS_OK; /* the config alone will do */
    if (status != STATUS_OK) return error_wrap(err, status, "--model-path");
    plan_case->request.tensors = *tensors_out;
    return STATUS_OK;
}

static enum status load_drafter(const struct raw_flags *raw, struct plan_case *plan_case,
                                struct checkpoint_drafter *drafter, struct error *err) {
    const struct group_speculation speculation = group_flags_speculation(
        raw->model_path, raw->draft_path, raw->algorithm);
    if (strcmp(speculation.algorithm, "none") == 0) plan_case->tree_rows = 1;
    const char *path = speculation.drafter;
    if (!path) return STATUS_OK;
    enum status status = drafter_spec_load(path, &plan_case->spec, &drafter->spec, err);
    if (status == STATUS_OK) status = safetensors_open(path, &drafter->tensors, err);
    if (status == STATUS_NOT_FOUND && drafter->spec.layers > 0) status = STATUS_OK;
    if (status != STATUS_OK) return error_wrap(err, status, "--speculative-draft-model-path");
    plan_case->request.draft = &drafter->spec;
    plan_case->request.draft_tensors = drafter->tensors;
    return STATUS_OK;
}

static void read_choices(const struct raw_flags *raw, struct memory_request *request) {
    request->layout = strcmp(raw->device, "cpu") != 0 ? MEMORY_AS_STORED : MEMORY_PANELS;
    request->kv = kv_dtype_of_name(raw->kv_dtype);
    request->draft_as_target_layers = strcmp(raw->draft_pricing, "layers") == 0;
}

static enum status check_context(struct plan_case *plan_case, struct error *err) {
    struct memory_request *request = &plan_case->request;
    if (request->context_len == 0) request->context_len = plan_case->spec.context_max;
    if (request->context_len <= plan_case->spec.context_max) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--context-length: found %u, accepted: 1 to %u, the max_position_embeddings "
                     "of this model",
                     request->context_len, plan_case->spec.context_max);
}

/* Without a machine the question is what one request needs. */
static enum status make_plan(struct plan_case *plan_case, struct plan_calibration *calibration,
                             const struct raw_flags *raw, struct error *err) {
    struct memory_request *request = &plan_case->request;
    enum status status = check_context(plan_case, err);
    if (status == STATUS_OK) status = plan_case_make(plan_case, err);
    if (status == STATUS_OK && raw->calibrate) {
        status = plan_calibrate_read(raw->calibrate, calibration, err);
        if (status == STATUS_OK) status = plan_calibrate_fit(calibration, plan_case, err);
    }
    if (status != STATUS_OK) return status;
    if (request->free_bytes == 0 && request->fraction > 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--mem-fraction-static: found %g of an unknown size, accepted: with "
                         "--device-memory",
                         request->fraction);
    if (request->free_bytes == 0 && request->pool_tok == 0)
        request->pool_tok = request->context_len;
    return plan_case_make(plan_case, err);
}

static enum status answer(struct plan_case *plan_case, const struct raw_flags *raw,
                          int *exit_code_out, struct error *err) {
    struct plan_calibration calibration;
    struct plan_answer want_answer;
    struct plan_view view = {.plan_case = plan_case, .model_path = raw->model_path};
    enum status status = make_plan(plan_case, &calibration, raw, err);
    if (status == STATUS_OK && raw->calibrate) view.calibration = &calibration;
    if (status == STATUS_OK && raw->want_text) {
        status = plan_want_answer(plan_case, &raw->want, &want_answer, err);
        view.want = &raw->want;
        view.answer = &want_answer;
    }
    if (status != STATUS_OK) return status;
    (raw->json ? plan_view_print_json : plan_view_print)(&view);
    const struct memory_request *request = &plan_case->request;
    bool holds_one = plan_case->plan.pool_tok >=
                     memory_plan_request_tok(request, request->context_len);
    bool fits = raw->want_text ? want_answer.fits
                               : holds_one && plan_case->plan.shortfall_bytes == 0;
    *exit_code_out = printed(PROGRAM_NAME, fits ? EXIT_CODE_OK : EXIT_CODE_FAILED);
    return STATUS_OK;
}

static int plan(const struct raw_flags *raw, struct plan_case *plan_case) {
    struct safetensors *tensors = NULL;
    struct checkpoint_drafter drafter = {.tensors = NULL};
    struct error err;
    int exit_code = EXIT_CODE_OK;
    read_choices(raw, &plan_case->request);
    enum status status = load_model(raw->model_path, plan_case, &tensors, &err);
    if (status == STATUS_OK) status = load_drafter(raw, plan_case, &drafter, &err);
    if (status == STATUS_OK) status = answer(plan_case, raw, &exit_code, &err);
    if (tensors) safetensors_close(&tensors);
    if (drafter.tensors) safetensors_close(&drafter.tensors);
    if (status != STATUS_OK) return options_refuse(PROGRAM_NAME, EXIT_CODE_CONFIG, &err);
    return exit_code;
}

int cmd_plan(int argc, char *const *argv) {
    struct raw_flags raw = {.model_path = group_flags_default_model(),
                            .device = "cpu",
                            .kv_dtype = "bf16",
                            .draft_pricing = "true"};
    struct plan_case plan_case = {
        .request = {.tp = 1, .threads = 1, .page_tok = 64},
        .running = 8,
        .chunk_tok = 512,
        .tree_rows = 16,
    };
    struct memory_request *request = &plan_case.request;
    uint32_t max_total_tokens = 0;
    struct option table[] = {
        FLAG_MODEL_PATH(&raw.model_path),
        FLAG_TP(&request->tp),
        FLAG_DEVICE_MEMORY(&request->free_bytes),
        FLAG_MEM_FRACTION(&request->fraction),
        FLAG_CONTEXT_LENGTH(&request->context_len),
        FLAG_MAX_RUNNING_REQUESTS(&plan_case.running),
        FLAG_MAX_RUNNING_CAP(&plan_case.running_cap),
        FLAG_CHUNKED_PREFILL_SIZE(&plan_case.chunk_tok),
        FLAG_MAX_TOTAL_TOKENS(&max_total_tokens),
        FLAG_PAGE_SIZE(&request->page_tok),
        FLAG_KV_CACHE_DTYPE(&raw.kv_dtype),
        FLAG_DEVICE(&raw.device),
        FLAG_THREADS(&request->threads),
        FLAG_DRAFT_MODEL_PATH(&raw.draft_path),
        FLAG_SPECULATIVE_ALGORITHM(&raw.algorithm),
        FLAG_SPECULATIVE_NUM_DRAFT_TOKENS(&plan_case.tree_rows),
        {.name = "--draft-pricing",
         .type = OPTION_CHOICE,
         .value = &raw.draft_pricing,
         .choices = "true|layers",
         .fallback = "true",
         .help = "what a drafter's KV costs: what it is, or as so many layers of the target"},
        {.name = "--resident",
         .type = OPTION_BYTES,
         .value = &request->resident_bytes,
         .fallback = "as planned",
         .help = "what the load took, where it was measured"},
        {.name = "--want",
         .type = OPTION_TEXT,
         .value = &raw.want_text,
         .argument = "[Nx]TOKENS",
         .help = "what it takes to hold this: 200k, or 8x25k at once"},
        {.name = "--calibrate",
         .type = OPTION_TEXT,
         .value = &raw.calibrate,
         .argument = "LOG",
         .help = "fit what is unknown to the memory lines of a boot log, ours or SGLang's"},
        {.name = "--json", .type = OPTION_SWITCH, .value = &raw.json, .help = "a line of JSON"},
    };
    const struct options_program program = {
        .name = PROGRAM_NAME,
        .usage = "[flags]",
        .summary = "Prints what a rank will hold and how many tokens its pool has, before anything "
                   "is loaded. Exit code 1 where it does not fit.",
        .option = table,
        .option_count = sizeof table / sizeof *table,
    };
    struct options_result result;
    struct error err;
    int exit_code;
    if (!options_take(&program, argc, argv, &result, &exit_code)) return exit_code;
    if (raw.want_text && plan_want_parse(raw.want_text, &raw.want, &err) != STATUS_OK)
        return options_refuse(PROGRAM_NAME, EXIT_CODE_USAGE, &err);
    request->pool_tok = max_total_tokens;
    return plan(&raw, &plan_case);
}
