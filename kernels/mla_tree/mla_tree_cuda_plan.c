#include "mla_tree/mla_tree_cuda.h"

#include "mla_tree/mla_tree_tile.h"

static const struct mla_tile_shape shapes[MLA_TILE_COUNT] = {
#define X(name, queries, tok, stages) [name] = {queries, tok, stages},
    MLA_CUDA_TILES(X)
#undef X
};

bool mla_tree_cuda_takes(const struct mla_tree_args *args) {
    bool known = (args->latent_dim == 512 && args->rope_dim == 64) ||
                 (args->latent_dim == 128 && args->rope_dim == 32);
    return known && args->kv_dtype == KERNEL_BF16;
}

static size_t shared_bytes(const struct mla_tree_args *args, enum mla_cuda_tile tile) {
    return mla_tile_shared_bytes(shapes[tile], args->latent_dim, args->rope_dim);
}

/* The smallest that holds all queries, so that the cache is read once, or the largest that fits. */
static enum mla_cuda_tile choose_tile(const struct mla_tree_args *args, uint32_t queries,
                                      const struct kernel_device *device) {
    enum mla_cuda_tile best = MLA_TILE_16;
    for (int tile = MLA_TILE_16; tile < MLA_TILE_COUNT; tile++) {
        if (shared_bytes(args, (enum mla_cuda_tile)tile) > device->shared_bytes_max) break;
        best = (enum mla_cuda_tile)tile;
        if (shapes[tile].queries >= queries) break;
    }
    return best;
}

/* One block a multiprocessor where the context is long enough to feed them. */
static uint32_t choose_splits(uint32_t blocks_a_split, uint32_t positions,
                              const struct kernel_device *device) {
    uint32_t splits = device->multiprocessors / blocks_a_split;
    uint32_t worth = divide_up(positions, MLA_CUDA_SPLIT_TOK);
    if (splits > worth) splits = worth;
    if (splits > MLA_CUDA_SPLITS_MAX) splits = MLA_CUDA_SPLITS_MAX;
    return splits > 0 ? splits : 1;
}

struct mla_cuda_plan mla_tree_cuda_plan(const struct mla_tree_args *args,
                                        const struct kernel_device *device) {
    uint32_t queries = args->rows_max * args->heads;
    KERNEL_CHECK(queries > 0 && args->sequence_count > 0);
    enum mla_cuda_tile tile = choose_tile(args, queries, device);
    struct mla_cuda_plan plan = {.tile = tile,
                                 .tile_queries = shapes[tile].queries,
                                 .query_tiles = divide_up(queries, shapes[tile].queries),
                                 .shared_bytes = shared_bytes(args, tile)};
    KERNEL_CHECK(plan.shared_bytes <= device->shared_bytes_max);
    plan.splits = choose_splits(plan.query_tiles * args->sequence_count, args->positions_max,
                                device);
    size_t partials = (size_t)plan.splits * args->sequence_count * queries;
    plan.scratch_bytes = partials * (args->latent_dim + MLA_PARTIAL_STATS) * sizeof(float);
    return plan;
}
