/* The vocabulary of the core: what happens to it (events) and what it wants done (effects).
 *
 * Ownership is one rule: an event and all it points to is borrowed for the call of core_step;
 * effects and all they point to live until the next call. Time reaches the core in every event,
 * randomness in those that need it; the core has no other source of either.
 */
#ifndef ESPALIER_EVENT_H
#define ESPALIER_EVENT_H

#include "base/pool.h"
#include "message.h"

#define EVENT_NS_PER_MS INT64_C(1000000)

/* A worker's connection, as the shell names it: a new one for each process that says HELLO. */
struct worker_id {
    uint32_t value; /* 0 is nobody */
};

enum event_type {
    EVENT_TICK,   /* time passes: at least once a second, and when a timer effect is due */
    EVENT_CALL,   /* a client's Generate call, decoded and valid */
    EVENT_CANCEL, /* of a call: by the client, its deadline, its silence */
    EVENT_JOB_DONE,
    EVENT_WORKER_MESSAGE,
    EVENT_WORKER_LOST, /* process dead, or connection gone */
    EVENT_DRAIN,       /* finish what runs, accept nothing new */
    EVENT_FLUSH,       /* of the prefix cache: a prefix, or everything */
    EVENT_RESIZE,      /* of the pool or the batch: a client's Resize call */
    EVENT_EXAMINE,     /* of what ranks hold: a client's Examine call */
};

struct event {
    enum event_type type;
    int64_t now_ns;
    union {
        struct {
            struct pool_id call; /* the rpc server's name of it */
            const struct generate_request *request;
            int32_t priority;
            const char *tenant; /* prefixes are shared within one; "" or NULL: the nameless */
            const char *idempotency_key; /* "" or NULL: none */
            uint64_t random;             /* the seed, if the request brings none */
        } call;
        struct {
            struct pool_id call;
            enum status reason;
        } cancel;
        struct {
            uint64_t job;
            enum status status;
            const char *text;      /* why not OK */
            const uint32_t *token; /* the prompt's ids */
            uint32_t token_count;
            bool in_reasoning; /* the prompt ends inside <think> */
        } job_done;
        struct {
            struct worker_id worker;
            const struct worker_message *message;
        } worker; /* message is NULL for EVENT_WORKER_LOST */
        struct {
            int64_t deadline_ns; /* what runs then is cut */
        } drain;
        struct {
            const char *tenant;    /* whose prefix */
            const uint32_t *token; /* everything that begins with these, in whole pages */
            uint32_t token_count;  /* 0: everything of everybody */
        } flush;
        struct {
            struct pool_id call;
            struct resize_request request;
        } resize;
        struct {
            struct pool_id call;
            const char *tenant;    /* whose prefix */
            const uint32_t *token; /* what of it is cached, in whole pages */
            uint32_t token_count;  /* 0: everything of everybody */
            uint32_t rows;
        } examine;
    };
};

enum effect_type {
    EFFECT_SEND_WORKER,
    EFFECT_DROP_WORKER, /* close the connection: refused, or replaced */
    EFFECT_CALL_DATA,   /* one delta of a stream */
    EFFECT_CALL_END,
    EFFECT_JOB_TOKENIZE, /* answer with EVENT_JOB_DONE; off the loop if it is long */
    EFFECT_TIMER,        /* send EVENT_TICK no later than at_ns */
    EFFECT_LOG,
    EFFECT_EXIT,     /* end the process */
    EFFECT_RESIZE,   /* how far a resize is: one element of its call's stream */
    EFFECT_EXAMINED, /* what a rank found: one element of the call's stream */
};

struct effect {
    enum effect_type type;
    union {
        struct {
            struct worker_id worker;
            const struct control_message *message;
        } send_worker;
        struct {
            struct worker_id worker;
        } drop_worker;
        struct {
            struct pool_id call;
            struct generate_delta delta;
        } call_data;
        struct {
            struct pool_id call;
            enum status status;
            const char *text;
            const struct generate_summary *summary; /* NULL where there is none */
        } call_end;
        struct {
            uint64_t job;
            enum prompt_kind kind; /* TEXT or CHAT */
            struct bytes text;     /* the event's own bytes: copied by the shell if the job outlives
                                    * the event */
        } job;
        struct {
            int64_t at_ns;
        } timer;
        struct {
            int level; /* enum log_level */
            const char *event;
            const char *text; /* key=value pairs */
        } log;
        struct {
            int code;
            const char *text;
        } exit;
        struct {
            struct pool_id call;
            struct resize_progress progress;
        } resize;
        struct {
            struct pool_id call;
            struct examine_report report; /* points into the event */
        } examined;
    };
};

/* The effects of one core_step, in order. */
struct effects {
    const struct effect *effect;
    uint32_t count;
};

#endif
