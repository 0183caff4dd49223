/* The clients: what they ask for, what they do to their calls, what they got, and whether that is
 * what the request gives alone. */
#ifndef ESPALIER_SIM_CLIENT_H
#define ESPALIER_SIM_CLIENT_H

#include "event.h"
#include "sim_model.h"

#define SIM_CALLS      48u
#define SIM_PROMPT_MAX 256u
#define SIM_STOPS      2u
#define SIM_CHOICES    4u
#define SIM_BIASES     3u

struct sim_cluster;

/* What one choice of a call got, and what it gives alone. */
struct sim_choice {
    uint32_t token[SIM_MODEL_TOKENS];
    uint32_t token_count;
    char got[SIM_MODEL_CHANNELS][SIM_MODEL_TEXT_BYTES];
    size_t got_bytes[SIM_MODEL_CHANNELS];
    enum finish_reason finish; /* as a delta said; NONE: none has */
    struct sim_model_stream expected;
};

struct sim_call {
    struct generate_request request;
    uint32_t prompt[SIM_PROMPT_MAX]; /* ids, also where the request brings text */
    char text[SIM_PROMPT_MAX + 1];
    const char *stop[SIM_STOPS];
    uint32_t stop_token[1];
    struct logit_bias bias[SIM_BIASES];
    uint32_t prompt_count;
    bool in_reasoning;
    bool is_malformed;  /* the codec must refuse it */
    bool has_bad_token; /* the core must */
    bool job_fails;
    uint32_t cancel_at; /* tokens received; UINT32_MAX: never */
    enum status cancel_as;
    const char *tenant, *key; /* idempotency key; "": none */
    int32_t priority;
    bool cancels_again; /* also after the end */

    struct pool_id id;
    uint64_t random; /* the seed where the request brings none */
    bool arrived, ended, cancelled;
    int64_t came_ns, flushed_ns; /* its arrival, and that of a flush after its last step (0: none),
                                  * by the world's clock, which never jumps */
    uint64_t ended_steps;        /* of the core, when it ended */
    int64_t arrived_ns;          /* by the core's clock */
    enum status status;
    uint32_t token_count; /* of all choices */
    uint32_t choice_count;
    struct sim_choice choice[SIM_CHOICES];
};

struct sim_client {
    struct sim_call call[SIM_CALLS];
    uint32_t call_count;
    struct sim_call *arriving;           /* now; NULL: none */
    uint32_t slot_generation[SIM_CALLS]; /* of the rpc server's call slots; odd: in use */
};

/* What came of the calls of all seeds so far. */
struct sim_client_totals {
    uint64_t calls, ended[STATUS_COUNT], tokens, refused_by_codec;
    uint64_t joined; /* deltas of several tokens */
};
extern struct sim_client_totals sim_client_totals;

/* The call as it travels: its header and its body. */
struct bytes sim_client_encode(struct sim_cluster *cluster, const struct sim_call *call);

/* It reaches the coordinator. */
void sim_client_arrive(struct sim_cluster *cluster, uint32_t call_idx, struct bytes bytes);
void sim_client_cancel(struct sim_cluster *cluster, uint32_t call_idx, enum status reason);
void sim_client_job(struct sim_cluster *cluster, uint32_t call_idx, uint64_t job);

/* Effects. */
void sim_client_tokenize(struct sim_cluster *cluster, const struct effect *effect);
void sim_client_data(struct sim_cluster *cluster, struct pool_id id,
                     const struct generate_delta *delta);
void sim_client_end(struct sim_cluster *cluster, const struct effect *effect);

/* All of the prefix cache is gone. */
void sim_client_flushed(struct sim_cluster *cluster);

bool sim_client_all_ended(const struct sim_cluster *cluster);

#endif
