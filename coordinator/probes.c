#include "probes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "probe_answer.h"

enum probe { PROBE_LIVE, PROBE_STARTED, PROBE_READY, PROBE_UNKNOWN };

static enum probe which(const char *path) {
    if (strcmp(path, "/livez") == 0) return PROBE_LIVE;
    if (strcmp(path, "/startupz") == 0) return PROBE_STARTED;
    if (strcmp(path, "/readyz") == 0 || strcmp(path, "/health") == 0) return PROBE_READY;
    return PROBE_UNKNOWN;
}

static const char *const rank_words[] = {[RANK_ABSENT] = "absent",
                                         [RANK_LOADING] = "loading",
                                         [RANK_LOADED] = "loaded",
                                         [RANK_READY] = "ready",
                                         [RANK_LOST] = "lost"};

static const struct rank_status *find_rank(const struct snapshot *snapshot, const char *text) {
    char *end;
    unsigned long rank = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0') return NULL;
    for (uint32_t i = 0; i < snapshot->rank_count; i++)
        if (snapshot->rank[i].rank == rank) return &snapshot->rank[i];
    return NULL;
}

static bool is_well(const struct rank_status *rank, enum probe probe) {
    bool trouble = rank->trouble[0] != '\0';
    switch (probe) {
    case PROBE_READY: return rank->state == RANK_READY && !trouble;
    case PROBE_STARTED: return rank->state == RANK_LOADED || rank->state == RANK_READY;
    default: return rank->state != RANK_ABSENT && rank->state != RANK_LOST && !trouble;
    }
}

static void answer_rank(struct core *core, int64_t now_ns, enum probe probe, const char *text,
                        struct http_answer *answer) {
    struct snapshot snapshot = core_snapshot(core, now_ns);
    const struct rank_status *rank = find_rank(&snapshot, text);
    char reason[128];
    if (!rank) {
        snprintf(reason, sizeof reason, "rank: found \"%.20s\", accepted: 0 to %u", text,
                 snapshot.tp - 1);
        probe_answer_fill(answer, false, "unknown", reason);
        return;
    }
    char service[24];
    snprintf(service, sizeof service, "rank/%u", rank->rank);
    struct health_reply health = core_health(core, service, now_ns);
    probe_answer_fill(answer, is_well(rank, probe), rank_words[rank->state], health.reason);
}

void probes_answer(struct core *core, int64_t now_ns, const char *path, const char *query,
                   struct http_answer *answer) {
    enum probe probe = which(path);
    if (probe == PROBE_UNKNOWN) {
        probe_answer_unknown(answer, path);
        return;
    }
    if (strncmp(query, "rank=", 5) == 0) {
        answer_rank(core, now_ns, probe, query + 5, answer);
        return;
    }
    struct snapshot snapshot = core_snapshot(core, now_ns);
    bool well = snapshot.ready && snapshot.reason[0] == '\0';
    const char *state = snapshot.draining     ? "draining"
                        : well                ? "ready"
                        : snapshot.ready      ? "troubled"
                        : snapshot.has_served ? "recovering"
                                              : "starting";
    bool ok = probe == PROBE_LIVE || (probe == PROBE_STARTED ? snapshot.has_served : well);
    probe_answer_fill(answer, ok, state, snapshot.reason);
}
