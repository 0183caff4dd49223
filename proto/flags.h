/* Flags that more than one program has, each defined once: the launcher offers what the
 * coordinator and the workers take, in the same words and ranges, and hands it on by scope.
 * Names follow SGLang's; aliases are those of other servers, so that a copied command line works.
 *
 * A macro is a row of a `struct option` table (options.h); its argument is where the value goes.
 */
#ifndef ESPALIER_FLAGS_H
#define ESPALIER_FLAGS_H

#include "base/limits.h"
#include "options.h"

/* Which child a flag is handed to. */
#define FLAG_COORDINATOR 1u
#define FLAG_WORKER      2u
#define FLAG_BOTH        3u

#define FLAG_MODEL_PATH(target)                                                                    \
    {                                                                                              \
        .name = "--model-path", .aliases = "--model -m", .type = OPTION_TEXT, .value = (target),   \
        .argument = "DIR", .scope = FLAG_BOTH,                                                     \
        .help = "Hugging Face folder with config.json, weights and tokenizer"                      \
    }

#define FLAG_TP(target)                                                                            \
    {                                                                                              \
        .name = "--tp", .aliases = "--tp-size --tensor-parallel-size -tp", .type = OPTION_COUNT,   \
        .value = (target), .min = 1, .max = TP_MAX, .fallback = "1", .scope = FLAG_BOTH,           \
        .help = "ranks the model is split over: 1, 2, 4 or 8"                                      \
    }

#define FLAG_RUN_DIR(target)                                                                       \
    {                                                                                              \
        .name = "--run-dir", .type = OPTION_TEXT, .value = (target), .argument = "DIR",            \
        .fallback = "$XDG_RUNTIME_DIR/espalier or /tmp/espalier-UID",                              \
        .help = "where the processes of one group meet; one coordinator a directory"               \
    }

#define FLAG_CLIENT_ENDPOINT(target)                                                               \
    {                                                                                              \
        .name = "--client-endpoint", .type = OPTION_TEXT, .value = (target),                       \
        .argument = "ENDPOINT", .fallback = "ipc://RUN_DIR/client.sock",                           \
        .scope = FLAG_COORDINATOR, .help = "where clients call: ipc://PATH or tcp://ADDRESS:PORT"  \
    }

#define FLAG_WORKER_ENDPOINT(target)                                                               \
    {                                                                                              \
        .name = "--worker-endpoint", .aliases = "--coordinator", .type = OPTION_TEXT,              \
        .value = (target), .argument = "ENDPOINT", .fallback = "ipc://RUN_DIR/worker.sock",        \
        .scope = FLAG_BOTH,                                                                        \
        .help = "where workers meet the coordinator: ipc://PATH or tcp://ADDRESS:PORT"             \
    }

/* With a scope: of the children; without: of a client. */
#define FLAG_CURVE_KEYS(target, whose)                                                             \
    {                                                                                              \
        .name = "--curve-keys", .type = OPTION_TEXT, .value = (target), .argument = "DIR",         \
        .scope = (whose), .fallback = "none: ipc, and loopback in clear text",                     \
        .help = "keys for TCP, as espalier keygen makes them"                                      \
    }

#define FLAG_LOG_LEVEL(target)                                                                     \
    {                                                                                              \
        .name = "--log-level", .type = OPTION_CHOICE, .value = (target),                           \
        .choices = "debug|info|warn|error", .fallback = "info", .scope = FLAG_BOTH,                \
        .help = "what is logged, on standard error"                                                \
    }

#define FLAG_LOG_DIR(target)                                                                       \
    {                                                                                              \
        .name = "--log-dir", .type = OPTION_TEXT, .value = (target), .argument = "DIR",            \
        .fallback = "RUN_DIR, for the group's life", .scope = FLAG_BOTH,                           \
        .help = "where log lines are kept as well, across boots"                                   \
    }

/* ---- the coordinator's ---- */

#define FLAG_CONTEXT_LENGTH(target)                                                                \
    {                                                                                              \
        .name = "--context-length", .aliases = "--max-model-len --ctx-size -c",                    \
        .type = OPTION_COUNT, .value = (target), .min = 1, .max = CONTEXT_TOK_MAX,                 \
        .scope = FLAG_COORDINATOR, .fallback = "the model's",                                      \
        .help = "tokens of one request, prompt and answer together"                                \
    }

#define FLAG_MAX_RUNNING_REQUESTS(target)                                                          \
    {                                                                                              \
        .name = "--max-running-requests", .aliases = "--max-num-seqs -np", .type = OPTION_COUNT,   \
        .value = (target), .min = 1, .max = PLAN_SEQS_MAX, .fallback = "8",                        \
        .scope = FLAG_COORDINATOR, .help = "requests that take part in steps at once"              \
    }

#define FLAG_MAX_QUEUED_REQUESTS(target)                                                           \
    {                                                                                              \
        .name = "--max-queued-requests", .type = OPTION_COUNT, .value = (target), .min = 1,        \
        .max = 4096, .fallback = "256", .scope = FLAG_COORDINATOR,                                 \
        .help = "requests that wait; further ones are refused at once"                             \
    }

#define FLAG_CHUNKED_PREFILL_SIZE(target)                                                          \
    {                                                                                              \
        .name = "--chunked-prefill-size", .aliases = "--max-num-batched-tokens",                   \
        .type = OPTION_COUNT, .value = (target), .min = 1, .max = PLAN_ROWS_MAX / 2,               \
        .fallback = "512", .scope = FLAG_COORDINATOR, .help = "prompt tokens of one step"          \
    }

#define FLAG_MAX_QUEUED_TOKENS(target)                                                             \
    {                                                                                              \
        .name = "--max-queued-tokens", .type = OPTION_COUNT, .value = (target), .min = 0,          \
        .max = 1u << 28, .fallback = "0: 4096 a queued request, and four of any length",           \
        .scope = FLAG_COORDINATOR,                                                                 \
        .help = "prompt tokens that wait; further ones are refused at once"                        \
    }

#define FLAG_QUEUE_TIMEOUT(target)                                                                 \
    {                                                                                              \
        .name = "--queue-timeout", .type = OPTION_COUNT, .value = (target), .min = 0,              \
        .max = 86400000, .argument = "MS", .fallback = "0, never", .scope = FLAG_COORDINATOR,      \
        .help = "a request that has waited so long is refused"                                     \
    }

#define FLAG_SCHEDULE_POLICY(target)                                                               \
    {                                                                                              \
        .name = "--schedule-policy", .type = OPTION_CHOICE, .value = (target),                     \
        .choices = "fcfs|shortest|longest-prefix|priority", .fallback = "fcfs",                    \
        .scope = FLAG_COORDINATOR,                                                                 \
        .help = "who of those that wait is let in first; all of them age"                          \
    }

#define FLAG_MAX_PREFILL_TOKENS(target)                                                            \
    {                                                                                              \
        .name = "--max-prefill-tokens", .type = OPTION_COUNT, .value = (target), .min = 0,         \
        .max = 1u << 28, .fallback = "0, no limit", .scope = FLAG_COORDINATOR,                     \
        .help = "prompt tokens let in and not computed yet; a longer prompt runs alone"            \
    }

#define FLAG_MAX_STEP_ROWS(target)                                                                 \
    {                                                                                              \
        .name = "--max-step-rows", .type = OPTION_COUNT, .value = (target), .min = 0,              \
        .max = PLAN_ROWS_MAX, .fallback = "0: decoding and chunks together",                       \
        .scope = FLAG_COORDINATOR, .help = "rows of one step, of decoding and of prompts"          \
    }

#define FLAG_TARGET_STEP_MS(target)                                                                \
    {                                                                                              \
        .name = "--target-step-ms", .type = OPTION_COUNT, .value = (target), .min = 0,             \
        .max = 60000, .argument = "MS", .fallback = "0, off", .scope = FLAG_COORDINATOR,           \
        .help = "chunks shrink so that a step beside decoding takes no longer"                     \
    }

#define FLAG_SPECULATIVE_ALGORITHM(target)                                                         \
    {                                                                                              \
        .name = "--speculative-algorithm", .type = OPTION_CHOICE, .value = (target),               \
        .choices = "none|suffix|dflash|auto", .scope = FLAG_COORDINATOR,                           \
        .fallback = "none, or auto where the launcher has a drafter",                              \
        .help = "what guesses next tokens: texts before, the drafter, or both"                     \
    }

#define FLAG_SPECULATIVE_NUM_DRAFT_TOKENS(target)                                                  \
    {                                                                                              \
        .name = "--speculative-num-draft-tokens", .type = OPTION_COUNT, .value = (target),         \
        .min = 2, .max = TREE_ROWS_MAX, .fallback = "16", .scope = FLAG_COORDINATOR,               \
        .help = "rows of a request's tree at most, its root among them"                            \
    }

#define FLAG_SPECULATIVE_FIXED(target)                                                             \
    {                                                                                              \
        .name = "--speculative-fixed-tree", .type = OPTION_SWITCH, .value = (target),              \
        .scope = FLAG_COORDINATOR,                                                                 \
        .help = "as many rows as there are guesses for, whatever they cost"                        \
    }

#define FLAG_SPECULATIVE_SEED_CHAIN(target)                                                        \
    {                                                                                              \
        .name = "--speculative-chain-first", .type = OPTION_SWITCH, .value = (target),             \
        .scope = FLAG_COORDINATOR, .help = "trees begin with the drafter's likeliest chain"        \
    }

#define FLAG_SPECULATIVE_HISTORY_TOKENS(target)                                                    \
    {                                                                                              \
        .name = "--speculative-history-tokens", .type = OPTION_COUNT, .value = (target),           \
        .max = CONTEXT_TOK_MAX, .fallback = "1M", .scope = FLAG_COORDINATOR,                       \
        .help = "of finished replies, kept to guess from"                                          \
    }

#define FLAG_JOURNAL(target)                                                                       \
    {                                                                                              \
        .name = "--journal", .type = OPTION_TEXT, .value = (target), .argument = "FILE",           \
        .scope = FLAG_COORDINATOR,                                                                 \
        .help = "write what happens there, prompts too; the simulator replays it"                  \
    }

#define FLAG_DISABLE_OVERLAP(target)                                                               \
    {                                                                                              \
        .name = "--disable-overlap-schedule", .type = OPTION_SWITCH, .value = (target),            \
        .scope = FLAG_COORDINATOR, .help = "plan no step before the one before it has its results" \
    }

#define FLAG_NO_SELF_TEST(target)                                                                  \
    {                                                                                              \
        .name = "--no-self-test", .type = OPTION_SWITCH, .value = (target),                        \
        .scope = FLAG_COORDINATOR,                                                                 \
        .help = "be ready without testing attention, pool and collectives first"                   \
    }

#define FLAG_DISABLE_RADIX_CACHE(target)                                                           \
    {                                                                                              \
        .name = "--disable-radix-cache", .type = OPTION_SWITCH, .value = (target),                 \
        .scope = FLAG_COORDINATOR, .help = "compute every prompt from its beginning"               \
    }

#define FLAG_PAGE_SIZE(target)                                                                     \
    {                                                                                              \
        .name = "--page-size", .aliases = "--block-size", .type = OPTION_COUNT, .value = (target), \
        .min = 1, .max = KV_PAGE_TOK_MAX, .fallback = "64", .scope = FLAG_COORDINATOR,             \
        .help = "tokens of a page of the KV cache"                                                 \
    }

#define FLAG_KV_CACHE_DTYPE(target)                                                                \
    {                                                                                              \
        .name = "--kv-cache-dtype", .type = OPTION_CHOICE, .value = (target),                      \
        .choices = "bf16|f32|fp8", .fallback = "bf16", .scope = FLAG_COORDINATOR,                  \
        .help = "numbers in the KV cache"                                                          \
    }

#define FLAG_ACTIVATION_DTYPE(target)                                                              \
    {                                                                                              \
        .name = "--activation-dtype", .type = OPTION_CHOICE, .value = (target),                    \
        .choices = "bf16|f32|int8", .fallback = "bf16", .scope = FLAG_COORDINATOR,                 \
        .help = "what products with bf16 and INT4 weights round their inputs to;"                  \
                " int8: with INT4 alone, coarser and faster, the others bf16"                      \
    }

#define FLAG_PREFILL_FORM(target)                                                                  \
    {                                                                                              \
        .name = "--prefill-form", .type = OPTION_CHOICE, .value = (target),                        \
        .choices = "absorbed|expanded", .fallback = "absorbed", .scope = FLAG_COORDINATOR,         \
        .help = "attention of long chunks; expanded: faster after long prefixes, but"              \
                " logits then depend on how a prompt was cut"                                      \
    }

#define FLAG_MAX_TOTAL_TOKENS(target)                                                              \
    {                                                                                              \
        .name = "--max-total-tokens", .type = OPTION_COUNT, .value = (target), .min = 1,           \
        .max = 1u << 28, .scope = FLAG_COORDINATOR,                                                \
        .fallback = "what the memory holds, else one request of the context length",               \
        .help = "tokens that the KV cache holds, rounded up to pages"                              \
    }

#define MAX_TOTAL_TOKENS_CAP_DEFAULT (1u << 22)
#define FLAG_MAX_TOTAL_TOKENS_CAP(target)                                                          \
    {                                                                                              \
        .name = "--max-total-tokens-cap", .type = OPTION_COUNT, .value = (target), .min = 1,       \
        .max = 1u << 26, .argument = "TOKENS", .fallback = "4M", .scope = FLAG_COORDINATOR,        \
        .help = "the most tokens that `espalier resize` may ask for"                               \
    }

#define FLAG_MAX_RUNNING_CAP(target)                                                               \
    {                                                                                              \
        .name = "--max-running-cap", .type = OPTION_COUNT, .value = (target), .min = 1,            \
        .max = PLAN_SEQS_MAX, .fallback = "32, or --max-running-requests",                         \
        .scope = FLAG_COORDINATOR,                                                                 \
        .help = "the most running requests that `espalier resize` may ask for"                     \
    }

#define FLAG_MEM_FRACTION(target)                                                                  \
    {                                                                                              \
        .name = "--mem-fraction-static", .aliases = "--gpu-memory-utilization",                    \
        .type = OPTION_REAL, .value = (target), .real_min = 0.01, .real_max = 1.0,                 \
        .argument = "F", .scope = FLAG_COORDINATOR, .fallback = "all that fits",                   \
        .help = "weights and KV cache may take so much of what is free before the load"            \
    }

#define FLAG_DEVICE_MEMORY(target)                                                                 \
    {                                                                                              \
        .name = "--device-memory", .type = OPTION_BYTES, .value = (target), .scope = FLAG_BOTH,    \
        .help = "what a rank may take, free before the load: 93.73G"                               \
    }

#define FLAG_ALLOW_SHORT_POOL(target)                                                              \
    {                                                                                              \
        .name = "--allow-short-pool", .type = OPTION_SWITCH, .value = (target),                    \
        .scope = FLAG_COORDINATOR,                                                                 \
        .help = "start although one request of the context length does not fit the KV cache"       \
    }

#define DRAIN_TIMEOUT_S_DEFAULT 30u
#define FLAG_DRAIN_TIMEOUT(target)                                                                 \
    {                                                                                              \
        .name = "--drain-timeout", .type = OPTION_COUNT, .value = (target), .min = 0,              \
        .max = 86400, .argument = "SECONDS", .fallback = "30", .scope = FLAG_COORDINATOR,          \
        .help = "after SIGTERM, how long running requests may take to finish"                      \
    }

#define FLAG_PROBE_ADDRESS(target)                                                                 \
    {                                                                                              \
        .name = "--probe-address", .type = OPTION_TEXT, .value = (target),                         \
        .argument = "HOST:PORT", .fallback = "127.0.0.1:0, any free port",                         \
        .scope = FLAG_COORDINATOR,                                                                 \
        .help = "where /livez, /readyz, /startupz, /health, /metrics answer"                       \
    }

#define FLAG_METRICS_COMPAT(target)                                                                \
    {                                                                                              \
        .name = "--metrics-compat", .type = OPTION_CHOICE, .value = (target),                      \
        .choices = "none|sglang|vllm", .fallback = "none", .scope = FLAG_COORDINATOR,              \
        .help = "repeat /metrics under another server's names, for dashboards that exist"          \
    }

/* ---- a worker's ---- */

#define FLAG_DEVICE(target)                                                                        \
    {                                                                                              \
        .name = "--device", .type = OPTION_CHOICE, .value = (target),                              \
        .choices = "cpu|cuda|cuda:N", .fallback = "cpu", .scope = FLAG_WORKER,                     \
        .help = "what computes; cuda: the GPU of the rank's number, cuda:N: number N"              \
    }

#define FLAG_DRAFT_MODEL_PATH(target)                                                              \
    {                                                                                              \
        .name = "--speculative-draft-model-path", .aliases = "--speculative-draft-model",          \
        .type = OPTION_TEXT, .value = (target), .argument = "DIR", .scope = FLAG_WORKER,           \
        .help = "folder of a DFlash drafter made for this model"                                   \
    }

#define FLAG_DRAFT_WINDOW(target)                                                                  \
    {                                                                                              \
        .name = "--speculative-dflash-draft-window-size", .type = OPTION_COUNT, .value = (target), \
        .min = 0, .max = CONTEXT_TOK_MAX, .fallback = "0, all", .scope = FLAG_WORKER,              \
        .help = "last tokens of the context that the drafter looks at"                             \
    }

#define FLAG_THREADS(target)                                                                       \
    {                                                                                              \
        .name = "--threads", .type = OPTION_COUNT, .value = (target), .min = 1, .max = 256,        \
        .fallback = "its memory nodes' CPUs, divided by the ranks there", .scope = FLAG_WORKER,    \
        .help = "compute threads of a rank"                                                        \
    }

#define FLAG_NUMA(target)                                                                          \
    {                                                                                              \
        .name = "--numa", .type = OPTION_CHOICE_OR_COUNT, .value = (target),                       \
        .choices = "auto|off", .min = 0, .max = 1023, .argument = "auto|off|NODE",                 \
        .fallback = "auto", .scope = FLAG_WORKER,                                                  \
        .help = "memory nodes: auto, ranks keep to their part of them; NODE, all to that one"      \
    }

#endif
