/* Memory arithmetic: what a rank will hold, line by line, and how many tokens are left for the
 * pool.
 *
 * One pure function, used three times: by `espalier plan` before anything is loaded, by a worker
 * when it sizes its pool, and for the ledger that compares what was predicted with what happened.
 *
 *     free before load, P
 *     |<--------------- fraction * P ---------------->|<--------- headroom -------->|
 *     | weights | draft weights | KV target, KV draft | page table, activations,... | reserve |
 *
 * The fraction means what it means elsewhere: weights and pool together take so much of what was
 * free before the load, so tokens = (fraction * P - weights) / bytes a token. What it leaves must
 * hold the rest, which a user's fraction does not look at: `shortfall_bytes` says by how much it
 * does not. Without a fraction the rest is subtracted first and a 64th is kept in reserve.
 *
 * Bytes are a rank's. The latent cache is the same on every rank; see shard.h for the weights.
 */
#ifndef ESPALIER_MEMORY_PLAN_H
#define ESPALIER_MEMORY_PLAN_H

#include "drafter_spec.h"
#include "kv_dtype.h"
#include "model_spec.h"
#include "safetensors.h"

/* How a device keeps the model. */
enum memory_layout {
    MEMORY_AS_STORED, /* a GPU: every tensor as the checkpoint has it */
    MEMORY_PANELS,    /* the CPU: panels of outputs, vectors in f32 (kernels/linear) */
};

enum memory_line {
    MEMORY_EXPERTS, /* the weights of routed experts */
    MEMORY_EXPERT_SCALES,
    MEMORY_ATTN_DOWN, /* q_a, kv_a */
    MEMORY_ATTN_Q,    /* q_b, or q_proj */
    MEMORY_ATTN_KV,   /* kv_b */
    MEMORY_ATTN_OUT,
    MEMORY_SHARED_EXPERTS,
    MEMORY_DENSE,
    MEMORY_ROUTER, /* with its bias */
    MEMORY_NORMS,
    MEMORY_EMBED,
    MEMORY_HEAD,
    MEMORY_DRAFT_WEIGHTS,
    MEMORY_KV_TARGET,
    MEMORY_KV_DRAFT,
    MEMORY_PAGE_TABLE,
    MEMORY_ACTIVATIONS,
    MEMORY_WORKSPACE, /* of one op: verify partials, or its like */
    MEMORY_GRAPHS,
    MEMORY_COMM,
    MEMORY_LINE_COUNT,
};
#define MEMORY_WEIGHT_LINES (MEMORY_DRAFT_WEIGHTS + 1)

struct memory_line_info {
    const char *key;  /* "experts": in logs and JSON */
    const char *text; /* "routed experts" */
    bool replicated;  /* the same on every rank; of weights */
    bool at_most;     /* memory comes as it is used: less than predicted is no fault */
};
extern const struct memory_line_info memory_line_info[MEMORY_LINE_COUNT];

struct memory_request {
    const struct model_spec *spec;
    const struct safetensors *tensors;       /* NULL: config.json alone */
    const struct drafter_spec *draft;        /* NULL: none */
    const struct safetensors *draft_tensors; /* NULL: its config.json alone */
    bool draft_as_target_layers; /* price a drafter's layer as one of the target's, as others do */
    enum memory_layout layout;
    enum kv_dtype kv;
    uint32_t tp, threads;
    uint32_t context_len, page_tok;
    uint32_t max_running; /* requests that memory is laid out for: memory_plan_running */
    uint32_t step_rows;   /* of the largest step, all sequences together; at most PLAN_ROWS_MAX */
    uint64_t free_bytes;
    double fraction;          /* 0: all that fits */
    uint64_t resident_bytes;  /* weights as they were measured; 0: as planned */
    uint64_t graph_bytes;     /* as measured; nothing predicts them */
    uint64_t workspace_bytes; /* of all ops, as a device needs it; 0: the CPU's */
    uint64_t pool_tok;        /* 0: from free_bytes */
};

struct memory_plan {
    uint64_t line[MEMORY_LINE_COUNT];
    uint64_t parameters;        /* of the text model, all ranks together */
    uint64_t weight_bytes;      /* the weight lines, the drafter's too */
    uint64_t resident_bytes;    /* what the pool's size was reckoned with */
    uint64_t token_bytes;       /* target and draft */
    uint64_t draft_token_bytes; /* of it */
    uint64_t other_bytes;       /* all lines that are neither weights nor KV */
    uint64_t free_bytes;        /* 0 where only lines were wanted */
    uint64_t headroom_bytes;    /* free, less resident, less the pool */
    uint64_t shortfall_bytes;   /* of the headroom against other_bytes; 0 where it suffices */
    uint64_t pool_bytes;        /* the two KV lines */
    uint64_t pool_tok;          /* whole pages */
    double fraction;            /* as given, or what the pool amounts to */
};

/* NOT_FOUND or INVALID_ARGUMENT: the model cannot be split so, or the headers lack a tensor. A pool
 * of nothing is no error: pool_tok is 0. */
enum status memory_plan_make(const struct memory_request *request, struct memory_plan *plan_out,
                             struct error *err) MUST_USE;

/* A group may be resized up to --max-running-cap requests (0: not given), so its memory is laid out
 * for as many from the start; never for fewer than run at first. */
uint32_t memory_plan_running(uint32_t running, uint32_t running_cap);

/* What a request of tok_count tokens takes from a pool: whole pages. */
uint64_t memory_plan_request_tok(const struct memory_request *request, uint64_t tok_count);

/* The smallest fraction, in thousandths, whose pool holds tok_count tokens; above 1 where none
 * does. */
double memory_plan_fraction_for(const struct memory_request *request,
                                const struct memory_plan *plan, uint64_t tok_count);

/* Bytes of a pool of tok_count tokens, a multiple of the page. */
uint64_t memory_plan_kv_bytes(const struct memory_request *request, uint64_t tok_count);

#endif
