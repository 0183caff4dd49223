#include "plan_calibrate.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOG_LINE_BYTES_MAX 65536u
#define GIB                1073741824.0

/* ---- reading ------------------------------------------------------------------------------- */

/* The number behind `key` in the line. */
static bool number_after(const char *line, const char *key, double *value_out) {
    const char *at = strstr(line, key);
    if (!at) return false;
    at += strlen(key);
    char *end;
    double value = strtod(at, &end);
    if (end == at || !isfinite(value) || value < 0 || value > 1e18) return false;
    *value_out = value;
    return true;
}

static void keep_least(double *least, double value) {
    if (*least == 0 || value < *least) *least = value;
}

static void read_ledger(struct plan_calibration *calibration, const char *line) {
    for (int i = 0; i < MEMORY_LINE_COUNT; i++) {
        char key[64];
        snprintf(key, sizeof key, " line=%s ", memory_line_info[i].key);
        double predicted, measured;
        if (!strstr(line, key) || !number_after(line, " predicted_bytes=", &predicted) ||
            !number_after(line, " measured_bytes=", &measured))
            continue;
        if ((uint64_t)measured <= calibration->measured[i]) continue;
        calibration->measured[i] = (uint64_t)measured;
        calibration->predicted[i] = (uint64_t)predicted;
    }
}

static void count_rank(struct plan_calibration *calibration, const char *line) {
    const char *at = strstr(line, "TP");
    if (!at || at[2] < '0' || at[2] > '7') return;
    uint32_t rank = (uint32_t)(at[2] - '0');
    if (rank >= calibration->rank_count) calibration->rank_count = rank + 1;
}

/* The boot whose lines come now. A load after the line that ends a boot begins the next. */
static struct plan_boot *current_boot(struct plan_calibration *calibration, bool begins) {
    struct plan_boot *boot = &calibration->boot[calibration->boot_count - 1];
    if (!begins || boot->pool_tok == 0 || calibration->boot_count == PLAN_BOOTS_MAX) return boot;
    return &calibration->boot[calibration->boot_count++];
}

/* Of our own logs: the ranks of a boot say the same, and after a resize something else. */
static void read_fraction(struct plan_calibration *calibration, const char *line) {
    const char *id = strstr(line, " boot=");
    char name[sizeof calibration->boot[0].id] = "";
    double fraction;
    if (!id || !number_after(line, " mem_fraction_static=", &fraction) || fraction > 1) return;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(id + 1, " \n"), id + 1);
    struct plan_boot *boot = current_boot(calibration, false);
    if (strcmp(boot->id, name) == 0) return;
    boot = current_boot(calibration, true);
    snprintf(boot->id, sizeof boot->id, "%s", name);
    boot->fraction = fraction;
}

static bool read_line(struct plan_calibration *calibration, const char *line) {
    double value;
    if (strstr(line, "event=memory line=")) {
        read_ledger(calibration, line);
        return true;
    }
    if (strstr(line, "event=memory_total ") && number_after(line, " residual_bytes=", &value)) {
        if ((uint64_t)value > calibration->residual_bytes)
            calibration->residual_bytes = (uint64_t)value;
        read_fraction(calibration, line);
        return true;
    }
    bool is_begin = strstr(line, "Load weight begin") != NULL;
    bool is_fraction = number_after(line, "mem_fraction_static=", &value) ||
                       number_after(line, "--mem-fraction-static ", &value) ||
                       number_after(line, "--mem-fraction-static=", &value);
    struct plan_boot *boot = current_boot(calibration, is_begin || is_fraction);
    if (is_fraction && value > 0 && value <= 1) boot->fraction = value;
    bool found = is_fraction;
    if (number_after(line, "avail mem=", &value)) {
        double *into = is_begin                          ? &boot->begin_gib
                       : strstr(line, "Load weight end") ? &boot->loaded_gib
                       : strstr(line, "Memory pool end") ? &boot->pool_end_gib
                                                         : NULL;
        if (into) {
            keep_least(into, value);
            count_rank(calibration, line);
            found = true;
        }
    }
    if (number_after(line, "max_total_num_tokens=", &value)) {
        boot->pool_tok = (uint64_t)value;
        if (number_after(line, "max_running_requests=", &value))
            boot->max_running = (uint32_t)value;
        if (number_after(line, "context_len=", &value)) boot->context_len = (uint32_t)value;
        found = true;
    }
    return found;
}

enum status plan_calibrate_read(const char *path, struct plan_calibration *calibration_out,
                                struct error *err) {
    FILE *file = fopen(path, "re");
    if (!file)
        return error_set(err, STATUS_NOT_FOUND, "--calibrate: %s: %s", path, strerror(errno));
    char *line = malloc(LOG_LINE_BYTES_MAX);
    bool found = false;
    *calibration_out = (struct plan_calibration){.boot_count = 1};
    while (line && fgets(line, LOG_LINE_BYTES_MAX, file))
        found |= read_line(calibration_out, line);
    int read_errno = ferror(file) ? errno : 0;
    free(line);
    fclose(file);
    if (read_errno != 0)
        return error_set(err, STATUS_UNAVAILABLE, "--calibrate: %s: %s", path,
                         strerror(read_errno));
    if (found) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--calibrate: %s: found no line about memory, accepted: a log with \"Load "
                     "weight begin\", \"Memory pool end\" or \"max_total_num_tokens=\"",
                     path);
}

/* ---- fitting ------------------------------------------------------------------------------- */

/* Least squares over the boots that say fraction and tokens. */
static bool fit_line(struct plan_calibration *c) {
    double n = 0, sum_x = 0, sum_y = 0, sum_xx = 0, sum_xy = 0;
    for (uint32_t i = 0; i < c->boot_count; i++) {
        const struct plan_boot *boot = &c->boot[i];
        if (boot->fraction == 0 || boot->pool_tok == 0) continue;
        double x = boot->fraction, y = (double)boot->pool_tok;
        n++;
        sum_x += x;
        sum_y += y;
        sum_xx += x * x;
        sum_xy += x * y;
    }
    double spread = n * sum_xx - sum_x * sum_x;
    if (n < 2 || spread < 1e-9) return false;
    double slope = (n * sum_xy - sum_x * sum_y) / spread;
    if (slope <= 0) return false;
    c->tokens_per_fraction = slope;
    c->fraction_of_nothing = sum_x / n - sum_y / n / slope;
    for (uint32_t i = 0; i < c->boot_count; i++) {
        const struct plan_boot *boot = &c->boot[i];
        if (boot->fraction == 0 || boot->pool_tok == 0) continue;
        double off = slope * (boot->fraction - c->fraction_of_nothing) - (double)boot->pool_tok;
        if (fabs(off) > c->worst_tok) c->worst_tok = fabs(off);
    }
    return true;
}

static const struct plan_boot *boot_with_load(const struct plan_calibration *c) {
    for (uint32_t i = c->boot_count; i-- > 0;)
        if (c->boot[i].begin_gib > 0 && c->boot[i].loaded_gib > 0) return &c->boot[i];
    return NULL;
}

/* What a token cost in one boot that says everything but that. */
static double price_of(const struct plan_boot *boot) {
    double resident = boot->begin_gib - boot->loaded_gib;
    return (boot->fraction * boot->begin_gib - resident) * GIB / (double)boot->pool_tok;
}

static uint64_t price_with(const struct plan_case *plan_case, bool as_target_layers) {
    struct memory_request request = plan_case->request;
    request.draft_as_target_layers = as_target_layers;
    struct error err;
    struct memory_plan plan;
    request.pool_tok = request.page_tok;
    return memory_plan_make(&request, &plan, &err) == STATUS_OK ? plan.token_bytes : 0;
}

/* Of the two ways to price a drafter, the one nearer to what was paid. */
static void choose_price(struct plan_calibration *c, const struct plan_case *plan_case,
                         double paid) {
    uint64_t true_price = price_with(plan_case, false), by_layers = price_with(plan_case, true);
    c->priced_as_target_layers = fabs(paid - (double)by_layers) < fabs(paid - (double)true_price);
    c->token_bytes = c->priced_as_target_layers ? by_layers : true_price;
}

static void note_headroom(struct plan_calibration *c) {
    for (uint32_t i = 0; i < c->boot_count; i++) {
        const struct plan_boot *boot = &c->boot[i];
        if (boot->pool_end_gib == 0 || boot->pool_tok == 0 || c->free_bytes == 0) continue;
        uint64_t taken = c->resident_bytes + boot->pool_tok * c->token_bytes;
        c->headroom_bytes = c->free_bytes > taken ? c->free_bytes - taken : 0;
        c->pool_end_bytes = (uint64_t)(boot->pool_end_gib * GIB);
    }
}

static void fit_own_ledger(struct plan_calibration *c) {
    uint64_t weights = 0;
    for (int line = 0; line < MEMORY_WEIGHT_LINES; line++)
        weights += c->measured[line];
    if (weights > 0) c->resident_bytes = weights;
}

/* The line knows more digits than a log of two decimals, so its values replace what was logged. */
static void follow_line(struct plan_calibration *c) {
    c->free_bytes = (uint64_t)(c->tokens_per_fraction * (double)c->token_bytes);
    c->resident_bytes = (uint64_t)((double)c->free_bytes * c->fraction_of_nothing);
}

enum status plan_calibrate_fit(struct plan_calibration *c, struct plan_case *plan_case,
                               struct error *err) {
    struct memory_request *request = &plan_case->request;
    if (c->rank_count > request->tp)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--calibrate: found lines of rank %u, accepted: of those below --tp %u",
                         c->rank_count - 1, request->tp);
    const struct plan_boot *loaded = boot_with_load(c);
    bool has_line = fit_line(c);
    c->token_bytes = price_with(plan_case, request->draft_as_target_layers);
    if (loaded) {
        c->free_bytes = (uint64_t)(loaded->begin_gib * GIB);
        c->resident_bytes = (uint64_t)((loaded->begin_gib - loaded->loaded_gib) * GIB);
    } else {
        c->free_bytes = request->free_bytes;
    }
    if (has_line && c->free_bytes > 0)
        choose_price(c, plan_case, (double)c->free_bytes / c->tokens_per_fraction);
    else if (loaded && loaded->fraction > 0 && loaded->pool_tok > 0)
        choose_price(c, plan_case, price_of(loaded));
    if (has_line) follow_line(c);
    fit_own_ledger(c);
    note_headroom(c);
    if (request->free_bytes == 0) request->free_bytes = c->free_bytes;
    if (request->resident_bytes == 0) request->resident_bytes = c->resident_bytes;
    request->draft_as_target_layers |= c->priced_as_target_layers;
    return plan_case_make(plan_case, err);
}
