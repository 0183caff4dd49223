#include "rank_metrics.h"

#include <stdio.h>

#include "base/clock.h"
#include "exposition.h"

void rank_metrics_answer(const struct probe_state *state, const struct compute_numbers *numbers,
                         struct http_answer *answer) {
    const struct compute_progress *progress = &state->progress;
    const struct engine_numbers *engine = &numbers->engine;
    const struct {
        const char *name, *type, *help;
        double value;
    } line[] = {
        {"espalier_worker_in_group", "gauge", "1 where the rank is in a group.", state->in_group},
        {"espalier_worker_loaded", "gauge", "1 where its weights are loaded.", progress->loaded},
        {"espalier_worker_computing", "gauge", "1 while a step runs.", progress->computing},
        {"espalier_worker_progress_age_seconds", "gauge",
         "Since it last entered a collective, or began or ended a step.",
         (double)(state->now_ns - state->progress_ns) / (double)NS_PER_S},
        {"espalier_worker_group_generation", "gauge", "The group it is in; 0: none.",
         (double)progress->engine.generation},
        {"espalier_worker_weight_loads_total", "counter",
         "Times that this process has read its weights.", numbers->weight_loads},
        {"espalier_worker_weight_bytes", "gauge", "Bytes of weights read so far.",
         (double)progress->load_bytes},
        {"espalier_worker_kv_pool_bytes", "gauge", "Memory mapped for the KV pool.",
         (double)engine->kv_bytes},
        {"espalier_worker_scratch_bytes", "gauge", "Memory of activations.",
         (double)engine->scratch_bytes},
    };
    char rank[EXPOSITION_LABELS_MAX];
    snprintf(rank, sizeof rank, "rank=\"%u\"", state->rank);
    struct exposition out;
    exposition_begin(&out, answer->body, HTTP_ANSWER_BYTES_MAX);
    for (size_t i = 0; i < sizeof line / sizeof *line; i++) {
        exposition_family(&out, line[i].name, line[i].type, line[i].help);
        exposition_value(&out, rank, line[i].value);
    }
    exposition_family(&out, "espalier_worker_step_compute_seconds", "histogram",
                      "A step on this rank.");
    exposition_histogram(&out, rank, &engine->step_times);
    exposition_family(&out, "espalier_worker_all_reduce_seconds", "histogram",
                      "An all-reduce on this rank, its wait for the others included.");
    exposition_histogram(&out, rank, &engine->all_reduce_times);
    exposition_answer(&out, answer);
}
