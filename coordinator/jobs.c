#include "jobs.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "text/chat_template.h"
#include "text/prompt.h"

#define CHAT_TEXT_BYTES_MAX (2u * PROMPT_BYTES_MAX) /* the template's own words come on top */

struct job {
    uv_work_t work;
    struct jobs *jobs;
    struct job_result result;
    enum prompt_kind kind;
    struct bytes text;
    uint8_t *copy;    /* owned, where the job outlives its call; else NULL */
    struct job *next; /* of the finished */
};

struct jobs {
    uv_loop_t *loop;
    const struct tokenizer *tokenizer;
    struct chat_template chat;
    bool has_chat;
    struct error no_chat; /* why not */
    uint32_t tokens_max;
    void (*on_finished)(void *user);
    void *user;
    struct job *first, **last; /* finished, in order */
    uint32_t running;
    bool closing;
};

struct jobs *jobs_create(uv_loop_t *loop, const struct tokenizer *tokenizer, uint32_t tokens_max,
                         void (*on_finished)(void *user), void *user) {
    struct jobs *jobs = calloc(1, sizeof *jobs);
    CHECK(jobs);
    jobs->loop = loop;
    jobs->tokenizer = tokenizer;
    jobs->tokens_max = tokens_max;
    jobs->on_finished = on_finished;
    jobs->user = user;
    jobs->last = &jobs->first;
    jobs->has_chat = chat_template_init(&jobs->chat, tokenizer_vocab(tokenizer), false,
                                        &jobs->no_chat) == STATUS_OK;
    return jobs;
}

/* ---- the work, on any thread --------------------------------------------------------------- */

static enum status encode_chat(const struct job *job, struct token_list *tokens,
                               struct error *err) {
    const struct jobs *jobs = job->jobs;
    if (!jobs->has_chat)
        return error_set(err, STATUS_FAILED_PRECONDITION, "this model has no chat template: %s",
                         jobs->no_chat.text);
    struct prompt prompt;
    prompt_init(&prompt, CHAT_TEXT_BYTES_MAX);
    enum status status = chat_template_render(&jobs->chat, (const char *)job->text.data,
                                              job->text.size, &prompt, err);
    if (status == STATUS_OK) status = prompt_encode(&prompt, jobs->tokenizer, tokens, err);
    prompt_deinit(&prompt);
    return status == STATUS_OK ? status : error_wrap(err, status, "prompt_text (a chat)");
}

static void tokenize(struct job *job) {
    struct job_result *result = &job->result;
    const struct jobs *jobs = job->jobs;
    result->status = job->kind == PROMPT_CHAT
                         ? encode_chat(job, &result->tokens, &result->err)
                         : tokenizer_encode(jobs->tokenizer, (const char *)job->text.data,
                                            job->text.size, &result->tokens, &result->err);
    if (result->tokens.full)
        result->status = error_set(&result->err, STATUS_OUT_OF_RANGE,
                                   "the prompt has more than %u tokens, which the context holds "
                                   "(--context-length)",
                                   jobs->tokens_max);
    size_t count = result->tokens.count;
    result->in_reasoning = job->kind == PROMPT_CHAT && result->status == STATUS_OK && count > 0 &&
                           result->tokens.ids[count - 1] == jobs->chat.mark[CHAT_THINK_BEGIN];
}

/* ---- the queue, on the loop ---------------------------------------------------------------- */

static void destroy_job(struct job *job) {
    token_list_deinit(&job->result.tokens);
    free(job->copy);
    free(job);
}

static void append_finished(struct job *job) {
    struct jobs *jobs = job->jobs;
    job->next = NULL;
    *jobs->last = job;
    jobs->last = &job->next;
}

static void work(uv_work_t *work) {
    tokenize(work->data);
}

static void after_work(uv_work_t *work, int status) {
    struct job *job = work->data;
    struct jobs *jobs = job->jobs;
    jobs->running--;
    if (jobs->closing) {
        destroy_job(job);
        if (jobs->running == 0) free(jobs);
        return;
    }
    CHECK(status == 0);
    append_finished(job);
    jobs->on_finished(jobs->user);
}

void jobs_tokenize(struct jobs *jobs, uint64_t id, enum prompt_kind kind, struct bytes text) {
    struct job *job = calloc(1, sizeof *job);
    CHECK(job);
    job->jobs = jobs;
    job->kind = kind;
    job->text = text;
    job->result.job = id;
    token_list_init(&job->result.tokens, jobs->tokens_max);
    if (text.size <= JOBS_INLINE_BYTES_MAX) {
        tokenize(job);
        append_finished(job);
        return;
    }
    job->copy = malloc(text.size);
    CHECK(job->copy);
    memcpy(job->copy, text.data, text.size);
    job->text.data = job->copy;
    job->work.data = job;
    jobs->running++;
    CHECK(uv_queue_work(jobs->loop, &job->work, work, after_work) == 0);
}

struct job_result *jobs_take(struct jobs *jobs) {
    struct job *job = jobs->first;
    if (!job) return NULL;
    jobs->first = job->next;
    if (!jobs->first) jobs->last = &jobs->first;
    return &job->result;
}

void jobs_release(struct job_result *result) {
    destroy_job((struct job *)((char *)result - offsetof(struct job, result)));
}

void jobs_destroy(struct jobs **jobs_in) {
    struct jobs *jobs = *jobs_in;
    *jobs_in = NULL;
    struct job_result *result;
    while ((result = jobs_take(jobs)) != NULL)
        jobs_release(result);
    jobs->closing = true;
    if (jobs->running == 0) free(jobs);
}
