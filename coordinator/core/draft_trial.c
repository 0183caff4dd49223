#include "draft_trial.h"

#define TRIAL_STEPS 8u
#define CLEARLY     0.8 /* of plain decoding: a trial is over before its end */
#define REST_FIRST  16u /* steps; their cost is known then */
#define REST_GROWTH 4u
#define REST_MAX    2048u

void draft_trial_init(struct draft_trial *trial) {
    *trial = (struct draft_trial){.rest = REST_FIRST, .rest_next = REST_FIRST};
}

bool draft_trial_is_on(const struct draft_trial *trial) {
    return trial->rest == 0;
}

void draft_trial_pass(struct draft_trial *trial) {
    if (trial->rest > 0) trial->rest--;
}

static void begin(struct draft_trial *trial) {
    trial->sum = (struct draft_trial_step){.tokens = 0};
    trial->steps = 0;
}

static void give_up(struct draft_trial *trial) {
    begin(trial);
    trial->rest = trial->rest_next;
    trial->rest_next *= REST_GROWTH;
    if (trial->rest_next > REST_MAX) trial->rest_next = REST_MAX;
}

void draft_trial_take(struct draft_trial *trial, const struct draft_trial_step *step) {
    if (trial->rest > 0 || step->plain_ns == 0) return;
    struct draft_trial_step *sum = &trial->sum;
    sum->tokens += step->tokens;
    sum->ns += step->ns;
    sum->plain_tokens += step->plain_tokens;
    sum->plain_ns += step->plain_ns;
    trial->steps++;
    double rate = sum->tokens * sum->plain_ns, plain_rate = sum->plain_tokens * sum->ns;
    if (rate < CLEARLY * plain_rate || (trial->steps == TRIAL_STEPS && rate < plain_rate)) {
        give_up(trial);
    } else if (trial->steps == TRIAL_STEPS) {
        begin(trial);
        trial->rest_next = REST_FIRST;
    }
}
