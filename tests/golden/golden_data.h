/* The reference's data files, read. Exits with a message where one cannot be. */
#ifndef ESPALIER_GOLDEN_DATA_H
#define ESPALIER_GOLDEN_DATA_H

#include <stdint.h>

#define GOLDEN_TOP 5u

struct golden_prompt {
    const char *kind, *prompt;
    uint32_t *id; /* [id_count] */
    uint32_t id_count;
    uint32_t top_id[GOLDEN_TOP];
    double top_logit[GOLDEN_TOP];
    uint32_t *greedy; /* [greedy_count] */
    uint32_t greedy_count;
};

/* What the reference lost on one window of held-out tokens. */
struct golden_window {
    uint32_t begin, tokens;
    double nll;
};

/* What the reference drafts behind one prompt. */
#define GOLDEN_DRAFT_LEN 7u
#define GOLDEN_DRAFT_TOP 8u
struct golden_draft {
    uint32_t *id; /* [root + 1]: tokens with context, and the root */
    uint32_t root;
    uint32_t top[GOLDEN_DRAFT_LEN][GOLDEN_DRAFT_TOP];
    double top_logit[GOLDEN_DRAFT_LEN][GOLDEN_DRAFT_TOP];
    double lse[GOLDEN_DRAFT_LEN];
};

/* All live until the process ends. */
uint32_t golden_data_prompts(const struct golden_prompt **prompts_out);
uint32_t golden_data_heldout(const uint32_t **ids_out);
uint32_t golden_data_windows(const struct golden_window **windows_out);
uint32_t golden_data_drafts(const struct golden_draft **drafts_out);

#endif
