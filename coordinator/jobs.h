/* Work that takes too long for the loop: turning prompts into token ids.
 *
 * A short prompt is done at once, since handing it to a thread costs more than doing it; a long
 * one runs on libuv's thread pool. Either way the result is collected with jobs_take, so that the
 * core meets one way of ending only. Text is copied where the job outlives the call.
 *
 * Thread: that of the loop, for every call.
 */
#ifndef ESPALIER_JOBS_H
#define ESPALIER_JOBS_H

#include <uv.h>

#include "message.h"
#include "text/token_list.h"
#include "text/tokenizer.h"

#define JOBS_INLINE_BYTES_MAX (8u << 10) /* about 0.3 ms of tokenizing */

struct jobs;

struct job_result {
    uint64_t job;
    enum status status;
    struct error err; /* why not OK */
    struct token_list tokens;
    bool in_reasoning; /* the prompt ends inside <think> */
};

/* on_finished(user): a job has ended off the loop, take it. A prompt of more than tokens_max ids
 * ends with INVALID_ARGUMENT. The tokenizer is borrowed. */
struct jobs *jobs_create(uv_loop_t *loop, const struct tokenizer *tokenizer, uint32_t tokens_max,
                         void (*on_finished)(void *user), void *user);

void jobs_tokenize(struct jobs *jobs, uint64_t job, enum prompt_kind kind, struct bytes text);

/* The next finished job, or NULL. Give it back with jobs_release. */
struct job_result *jobs_take(struct jobs *jobs);
void jobs_release(struct job_result *result);

/* Results not taken are dropped, and so are those of jobs that end in the loop's next turns. */
void jobs_destroy(struct jobs **jobs);

#endif
