#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "probe_answer.h"

static const char *state_word(const struct probe_state *state) {
    if (state->progress.computing) return "computing";
    if (state->in_group) return "ready";
    if (state->progress.loaded) return "loaded";
    if (state->progress.loading) return "loading";
    if (state->progress.self_test != SELF_TEST_NONE) return "testing";
    return "seeking";
}

static void describe(const struct probe_state *state, char *out, size_t out_bytes) {
    const struct compute_progress *progress = &state->progress;
    if (!state->connected)
        snprintf(out, out_bytes, "no coordinator yet");
    else if (progress->loading && progress->load_bytes_total > 0)
        snprintf(out, out_bytes, "weights %.0f %%",
                 100.0 * (double)progress->load_bytes / (double)progress->load_bytes_total);
    else if (progress->self_test != SELF_TEST_NONE)
        snprintf(out, out_bytes, "self-test: %s, %u %%", self_test_name(progress->self_test),
                 progress->self_test_percent);
    else if (!progress->loaded)
        snprintf(out, out_bytes, "weights not loaded");
    else if (!state->in_group)
        snprintf(out, out_bytes, "not in a group");
    else
        snprintf(out, out_bytes, "generation %llu step %llu",
                 (unsigned long long)progress->engine.generation,
                 (unsigned long long)progress->engine.step);
}

bool probe_is_stuck(const struct probe_state *state) {
    return state->progress.computing &&
           state->now_ns - state->progress_ns > PROBE_STALL_MS_MAX * NS_PER_MS;
}

/* "rank=3" asks for rank 3: whoever asks another process by mistake must be told. */
static bool is_other_rank(const struct probe_state *state, const char *query) {
    return strncmp(query, "rank=", 5) == 0 && strtoul(query + 5, NULL, 10) != state->rank;
}

void probe_get(const struct probe_state *state, const char *path, const char *query,
               struct http_answer *answer) {
    char reason[128];
    bool ok;
    describe(state, reason, sizeof reason);
    if (strcmp(path, "/livez") == 0) {
        ok = !probe_is_stuck(state);
        if (!ok) snprintf(reason, sizeof reason, "the step under way makes no progress");
    } else if (strcmp(path, "/startupz") == 0) {
        ok = state->progress.loaded;
    } else if (strcmp(path, "/readyz") == 0 || strcmp(path, "/health") == 0) {
        ok = state->in_group;
    } else {
        probe_answer_unknown(answer, path);
        return;
    }
    if (is_other_rank(state, query)) {
        ok = false;
        snprintf(reason, sizeof reason, "this is rank %u", state->rank);
    }
    probe_answer_fill(answer, ok, state_word(state), reason);
}
