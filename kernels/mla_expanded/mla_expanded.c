/* What mla_expanded costs, in memory and operations; the same for every instruction set. */
#include "mla_expanded/mla_expanded_scratch.h"

size_t mla_expanded_scratch_lay(struct mla_expanded_scratch *scratch, void *base, uint32_t rows,
                                uint32_t latent_dim, uint32_t rope_dim, uint32_t nope_dim,
                                uint32_t value_dim) {
    size_t dim = (size_t)latent_dim + rope_dim, key = (size_t)nope_dim + rope_dim, bytes = 0;
    size_t values = ((size_t)value_dim + KERNEL_PANEL - 1) / KERNEL_PANEL * KERNEL_PANEL;
    scratch->w_uk = kernel_take(base, &bytes, (size_t)nope_dim * latent_dim, sizeof(float));
    scratch->tok = kernel_take(base, &bytes, MLA_BLOCK_TOK * dim, sizeof(float));
    scratch->latents = kernel_take(base, &bytes, (size_t)MLA_BLOCK_TOK * latent_dim, sizeof(float));
    scratch->keys = kernel_take(base, &bytes, MLA_BLOCK_TOK * key, sizeof(float));
    scratch->values = kernel_take(base, &bytes, MLA_BLOCK_TOK * values, sizeof(float));
    scratch->query = kernel_take(base, &bytes, MLA_EXPANDED_ROWS * key, sizeof(float));
    scratch->weights = kernel_take(base, &bytes, (size_t)MLA_EXPANDED_ROWS * MLA_BLOCK_TOK,
                                   sizeof(float));
    scratch->max = kernel_take(base, &bytes, rows, sizeof(float));
    scratch->sum = kernel_take(base, &bytes, rows, sizeof(float));
    return bytes;
}

size_t mla_expanded_scratch_bytes(uint32_t threads, uint32_t rows, uint32_t latent_dim,
                                  uint32_t rope_dim, uint32_t nope_dim, uint32_t value_dim) {
    struct mla_expanded_scratch scratch;
    return threads * mla_expanded_scratch_lay(&scratch, NULL, rows, latent_dim, rope_dim, nope_dim,
                                              value_dim);
}

bool mla_expanded_pays(const struct mla_expanded_args *args, const struct mla_sequence *chunk) {
    uint64_t rows = chunk->row_count;
    uint64_t blocks = (chunk->committed + rows + MLA_BLOCK_TOK - 1) / MLA_BLOCK_TOK;
    uint64_t seen = rows * chunk->committed + rows * (rows + 1) / 2;
    uint64_t head = (uint64_t)args->latent_dim * (args->nope_dim + args->value_dim);
    uint64_t absorbed = seen * (2ull * args->latent_dim + args->rope_dim) + rows * head;
    uint64_t key = (uint64_t)args->nope_dim + args->rope_dim;
    return seen * (key + args->value_dim) + blocks * MLA_BLOCK_TOK * head < absorbed;
}
