#include "sim_replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "journal.h"
#include "sim_model.h"

#define PATH_BYTES 4096

struct replay {
    struct journal_reader *reader;
    const char *model_path;
    bool verbose;
    struct core_options options;
    struct core *core;
    uint64_t events, effects, differing;
    uint64_t hash; /* of the last event's effects */
};

static const char *const event_name[] = {"tick",           "call",        "cancel", "job_done",
                                         "worker_message", "worker_lost", "drain",  "flush",
                                         "resize",         "examine"};

static enum status load_vocab(const char *path, struct core_options *options, struct error *err) {
    static struct vocab *vocab;
    char ranks[PATH_BYTES], config[PATH_BYTES];
    if (path[0] == '\0') {
        options->vocab = sim_model_vocab();
        return STATUS_OK;
    }
    snprintf(ranks, sizeof ranks, "%s/tiktoken.model", path);
    snprintf(config, sizeof config, "%s/tokenizer_config.json", path);
    enum status status = vocab_load(ranks, config, &vocab, err);
    options->vocab = vocab;
    return status;
}

static enum status start(struct replay *replay, const struct journal_record *record,
                         struct error *err) {
    core_destroy(&replay->core);
    replay->options = record->options;
    const char *path = replay->model_path ? replay->model_path : record->model_path;
    enum status status = load_vocab(path, &replay->options, err);
    if (status != STATUS_OK) return status;
    printf("core: tp=%u page_tok=%u page_count=%u context_len=%u model=\"%s\"\n",
           replay->options.tp, replay->options.page_tok, replay->options.page_count,
           replay->options.context_len, path);
    return core_create(&replay->options, &replay->core, err);
}

static void step(struct replay *replay, const struct event *event) {
    struct effects effects = core_step(replay->core, event);
    replay->hash = journal_reader_hash(replay->reader, effects);
    replay->events++;
    if (replay->verbose)
        printf("%" PRIu64 " t=%" PRId64 " %s: %u effects\n", replay->events, event->now_ns,
               event_name[event->type], effects.count);
    core_check(replay->core);
}

static void compare(struct replay *replay, uint64_t recorded) {
    replay->effects++;
    if (recorded == replay->hash) return;
    if (replay->differing++ == 0)
        printf("event %" PRIu64 ": its effects are %016" PRIx64 ", the journal has %016" PRIx64
               "\n",
               replay->events, replay->hash, recorded);
}

static enum status replay_all(struct replay *replay, struct error *err) {
    for (;;) {
        struct journal_record record;
        enum status status = journal_reader_next(replay->reader, &record, err);
        if (status != STATUS_OK || record.kind == JOURNAL_END) return status;
        if (record.kind == JOURNAL_OPTIONS)
            status = start(replay, &record, err);
        else if (!replay->core)
            status = error_set(err, STATUS_DATA_LOSS, "the journal lacks its options");
        else if (record.kind == JOURNAL_EVENT)
            step(replay, &record.event);
        else
            compare(replay, record.effects_hash);
        if (status != STATUS_OK) return status;
    }
}

int sim_replay(const char *path, const char *model_path, bool verbose) {
    struct replay replay = {.model_path = model_path, .verbose = verbose};
    struct error err;
    enum status status = journal_reader_open(path, &replay.reader, &err);
    if (status == STATUS_OK) status = replay_all(&replay, &err);
    core_destroy(&replay.core);
    journal_reader_close(&replay.reader);
    if (status != STATUS_OK) {
        fprintf(stderr, "sim: %s: %s\n", path, err.text);
        return status == STATUS_INVALID_ARGUMENT ? EXIT_CODE_USAGE : EXIT_CODE_FAILED;
    }
    printf("%" PRIu64 " events, %" PRIu64 " effects compared, %" PRIu64 " differ\n", replay.events,
           replay.effects, replay.differing);
    return replay.differing == 0 ? EXIT_CODE_OK : EXIT_CODE_FAILED;
}
