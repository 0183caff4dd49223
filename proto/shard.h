/* Which part of each tensor a rank owns: a pure function of name and rank.
 *
 * Let n = TP size, r = rank. Rows are outputs, columns inputs ([out, in] row-major).
 *
 *   tensor                                     split        rank r holds
 *   ------------------------------------------ ------------ -------------------------------------
 *   embed_tokens, lm_head                      rows         vocab/n rows
 *   q_a_proj, kv_a_proj_with_mqa               -            all
 *   q_b_proj (or q_proj)                       rows         its heads' N + P rows each
 *   kv_b_proj                                  rows         its heads' N + V rows each
 *   o_proj                                     columns      its heads' V columns each
 *   dense and shared gate_proj, up_proj        rows         width/n rows
 *   dense and shared down_proj                 columns      width/n columns
 *   experts gate_proj, up_proj                 rows         expert_width/n rows
 *   experts down_proj                          columns      expert_width/n columns (whole groups)
 *   mlp.gate, e_score_correction_bias, norms   -            all
 *
 * Every split is even and in rank order, so the ranks' slices laid side by side are the tensor, and
 * a split inner dimension falls into whole segments of the exactness contract (kernels/linear).
 */
#ifndef ESPALIER_SHARD_H
#define ESPALIER_SHARD_H

#include <stdint.h>

#include "model_spec.h"
#include "safetensors.h"

#define SHARD_NAME_BYTES 160u /* of any module of ours, prefix and suffix included */

enum shard_split { SHARD_WHOLE, SHARD_ROWS, SHARD_COLUMNS };

/* The modules of a checkpoint, one of each a layer (or a model). */
enum shard_tensor {
    SHARD_EMBED,
    SHARD_HEAD,
    SHARD_FINAL_NORM,
    SHARD_INPUT_NORM,
    SHARD_POST_NORM,
    SHARD_Q_PROJ, /* q_rank == 0 */
    SHARD_Q_A,
    SHARD_Q_A_NORM,
    SHARD_Q_B,
    SHARD_KV_A,
    SHARD_KV_A_NORM,
    SHARD_KV_B,
    SHARD_O,
    SHARD_DENSE_GATE,
    SHARD_DENSE_UP,
    SHARD_DENSE_DOWN,
    SHARD_ROUTER,
    SHARD_ROUTER_BIAS,
    SHARD_SHARED_GATE,
    SHARD_SHARED_UP,
    SHARD_SHARED_DOWN,
    SHARD_EXPERT_GATE,
    SHARD_EXPERT_UP,
    SHARD_EXPERT_DOWN,
    SHARD_TENSOR_COUNT,
};

struct shard_slice {
    enum shard_split split;
    uint32_t rows, columns;        /* of the whole tensor; vectors have 1 row */
    uint32_t row_begin, row_count; /* this rank's */
    uint32_t column_begin, column_count;
};

/* The module's name below the optional `language_model.` prefix, without its `.weight`:
 * "model.layers.3.mlp.experts.7.down_proj". layer and expert are ignored where there are none. */
void shard_name(enum shard_tensor tensor, uint32_t layer, uint32_t expert, char *name_out,
                uint32_t name_bytes);

/* The tensor `module` + `suffix` where Hugging Face folders put the text model: at the top, under
 * `language_model.` (K2.5 and later), or there without the inner `model.`. *layout is where the
 * last one was found, 0 to begin with. NULL: there is none. */
const struct tensor_info *shard_find(const struct safetensors *checkpoint, const char *module,
                                     const char *suffix, uint32_t *layout);

/* rank < tp; spec passed model_spec_check_tp for tp. */
struct shard_slice shard_slice(const struct model_spec *spec, enum shard_tensor tensor,
                               uint32_t rank, uint32_t tp);

#endif
