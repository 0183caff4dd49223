/* A folder of checkpoints/, but for its weights: the prompts and what the reference made of them.
 * Exits with a message where it cannot be read. */
#ifndef ESPALIER_CHECKPOINT_DATA_H
#define ESPALIER_CHECKPOINT_DATA_H

#include <stdint.h>

#define CHECKPOINT_PROMPTS_MAX 8u

struct checkpoint_data {
    uint32_t prompt_count;
    struct {
        uint32_t *id;
        uint32_t begin, count; /* rows of the arrays below */
    } prompt[CHECKPOINT_PROMPTS_MAX];
    uint32_t rows, layers, hidden, vocab;
    float *logits;   /* [rows, vocab] */
    float *residual; /* [layers, rows, hidden], after each layer */
    double *margin;  /* [layers, rows]: how far the router was from another selection, in scores */
};

void checkpoint_data_read(const char *folder, struct checkpoint_data *data_out);
void checkpoint_data_free(struct checkpoint_data *data);

#endif
