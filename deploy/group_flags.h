/* What a group is started with: the flags of `serve`, which `generate` and `chat` also take for a
 * group of their own, and how they reach the children. */
#ifndef ESPALIER_GROUP_FLAGS_H
#define ESPALIER_GROUP_FLAGS_H

#include "flags.h"
#include "launcher.h"

/* Where the launcher looks at the value itself, it stands here; the rest goes to the children as
 * it was given, already checked against its row. */
struct group_flags {
    const char *model_path; /* NULL until group_flags_finish */
    uint32_t tp;
    const char *draft_model_path;      /* NULL: none was given */
    const char *speculative_algorithm; /* likewise */
    const char *device;
    const char *log_level;
    const char *unread_text;
    uint32_t unread_count;
    uint64_t unread_wide;
    double unread_real;
    bool unread_switch;
};

#define GROUP_FLAGS_DEFAULT                                                                        \
    { .tp = 1, .device = "cpu", .log_level = "info" }

/* The rows every command that starts a group has. */
#define GROUP_FLAGS_ROWS(flags)                                                                    \
    FLAG_MODEL_PATH(&(flags)->model_path), FLAG_TP(&(flags)->tp),                                  \
        FLAG_CONTEXT_LENGTH(&(flags)->unread_count),                                               \
        FLAG_MAX_TOTAL_TOKENS(&(flags)->unread_count), FLAG_MEM_FRACTION(&(flags)->unread_real),   \
        FLAG_DEVICE_MEMORY(&(flags)->unread_wide), FLAG_ALLOW_SHORT_POOL(&(flags)->unread_switch), \
        FLAG_MAX_TOTAL_TOKENS_CAP(&(flags)->unread_count),                                         \
        FLAG_MAX_RUNNING_REQUESTS(&(flags)->unread_count),                                         \
        FLAG_MAX_RUNNING_CAP(&(flags)->unread_count),                                              \
        FLAG_MAX_QUEUED_REQUESTS(&(flags)->unread_count),                                          \
        FLAG_MAX_QUEUED_TOKENS(&(flags)->unread_count),                                            \
        FLAG_QUEUE_TIMEOUT(&(flags)->unread_count), FLAG_SCHEDULE_POLICY(&(flags)->unread_text),   \
        FLAG_CHUNKED_PREFILL_SIZE(&(flags)->unread_count),                                         \
        FLAG_MAX_PREFILL_TOKENS(&(flags)->unread_count),                                           \
        FLAG_MAX_STEP_ROWS(&(flags)->unread_count), FLAG_TARGET_STEP_MS(&(flags)->unread_count),   \
        FLAG_SPECULATIVE_ALGORITHM(&(flags)->speculative_algorithm),                               \
        FLAG_DRAFT_MODEL_PATH(&(flags)->draft_model_path),                                         \
        FLAG_DRAFT_WINDOW(&(flags)->unread_count),                                                 \
        FLAG_SPECULATIVE_NUM_DRAFT_TOKENS(&(flags)->unread_count),                                 \
        FLAG_SPECULATIVE_FIXED(&(flags)->unread_switch),                                           \
        FLAG_SPECULATIVE_SEED_CHAIN(&(flags)->unread_switch),                                      \
        FLAG_SPECULATIVE_HISTORY_TOKENS(&(flags)->unread_count),                                   \
        FLAG_DISABLE_OVERLAP(&(flags)->unread_switch), FLAG_NO_SELF_TEST(&(flags)->unread_switch), \
        FLAG_DISABLE_RADIX_CACHE(&(flags)->unread_switch), FLAG_PAGE_SIZE(&(flags)->unread_count), \
        FLAG_KV_CACHE_DTYPE(&(flags)->unread_text), FLAG_ACTIVATION_DTYPE(&(flags)->unread_text),  \
        FLAG_PREFILL_FORM(&(flags)->unread_text), FLAG_DEVICE(&(flags)->device),                   \
        FLAG_THREADS(&(flags)->unread_count), FLAG_NUMA(&(flags)->unread_text),                    \
        FLAG_JOURNAL(&(flags)->unread_text), FLAG_LOG_DIR(&(flags)->unread_text),                  \
        FLAG_LOG_LEVEL(&(flags)->log_level)

/* argv of the children, owned. */
struct group_arguments {
    char *coordinator[LAUNCHER_ARGS_MAX];
    char *worker[LAUNCHER_ARGS_MAX];
    uint32_t coordinator_count, worker_count;
};

/* The model when none was named: $ESPALIER_MODEL_PATH, else the embedded one. */
const char *group_flags_default_model(void);

/* What no row can say: flags that do not go together. */
enum status group_flags_check(const struct group_flags *flags, struct error *err) MUST_USE;

/* Was any flag given that only a group of one's own can honour? Its name, or NULL. */
const char *group_flags_given(const struct options_program *program);

/* What a group guesses with, where the flags (NULL: not given) leave it open. */
struct group_speculation {
    const char *drafter; /* NULL: none */
    const char *algorithm;
};
struct group_speculation group_flags_speculation(const char *model, const char *drafter,
                                                 const char *algorithm);

/* default_log_level: for the children where --log-level was not given. The embedded model brings
 * its drafter along, unless the algorithm asked for needs none; and where there is a drafter, how
 * to guess is left to the controller (auto) unless it was said. */
void group_flags_arguments(const struct options_program *program, const struct group_flags *flags,
                           const char *default_log_level, struct group_arguments *out);
void group_flags_free(struct group_arguments *arguments);

#endif
