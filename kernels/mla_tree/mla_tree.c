/* The workspace of mla_tree and how its work is cut, the same for every instruction set. */
#include "mla_tree/mla_tree_scratch.h"

size_t mla_tree_scratch_lay(struct mla_tree_scratch *scratch, void *base, uint32_t threads,
                            uint32_t latent_dim, uint32_t rope_dim) {
    size_t dim = (size_t)latent_dim + rope_dim, bytes = 0;
    scratch->query_bytes = MLA_QUERIES * dim * sizeof(float);
    scratch->block_floats = MLA_BLOCK_TOK * dim;
    scratch->weights_floats = (size_t)MLA_QUERIES * MLA_BLOCK_TOK;
    scratch->partial_floats = MLA_QUERIES * ((size_t)latent_dim + 2);
    scratch->merged_floats = (size_t)2 * MLA_QUERIES;
    scratch->query = kernel_take(base, &bytes, threads, scratch->query_bytes);
    scratch->block = kernel_take(base, &bytes, threads * scratch->block_floats, sizeof(float));
    scratch->weights = kernel_take(base, &bytes, threads * scratch->weights_floats, sizeof(float));
    scratch->partial = kernel_take(base, &bytes, threads * MLA_WAITING * scratch->partial_floats,
                                   sizeof(float));
    scratch->merged = kernel_take(base, &bytes, threads * MLA_SPLIT_GROUPS * scratch->merged_floats,
                                  sizeof(float));
    return bytes;
}

size_t mla_tree_scratch_bytes(uint32_t threads, uint32_t latent_dim, uint32_t rope_dim) {
    struct mla_tree_scratch scratch;
    return mla_tree_scratch_lay(&scratch, NULL, threads, latent_dim, rope_dim);
}

/* As many queries a group as it may have, all heads of a row together if possible. */
struct mla_tree_split mla_tree_split(const struct mla_tree_args *args) {
    struct mla_tree_split split;
    split.head_parts = divide_up(args->heads, MLA_QUERIES);
    split.heads = divide_up(args->heads, split.head_parts);
    split.rows = MLA_QUERIES / split.heads;
    return split;
}

uint32_t mla_tree_groups(const struct mla_tree_split *split, const struct mla_sequence *sequence) {
    return divide_up(sequence->row_count, split->rows) * split->head_parts;
}

uint32_t mla_tree_passes(const struct mla_tree_args *args, uint32_t sequence) {
    struct mla_tree_split split = mla_tree_split(args);
    return mla_tree_groups(&split, &args->sequences[sequence]);
}
