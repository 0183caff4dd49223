#include "mla_tree/mla_tree_cuda.h"

#include "mla_tree/mla_tree_tile.h"

#define BLOCK_RESERVED_BYTES                                                                       \
    1024u /* of a multiprocessor's shared memory, beside what it asks for */

static const struct mla_tile_shape shapes[MLA_TILE_COUNT] = {
#define X(name, queries, tok, stages, blocks) [name] = {queries, tok, stages, blocks},
    MLA_CUDA_TILES(X)
#undef X
        [MLA_TILE_WGMMA] = {MLA_WGMMA_QUERIES, MLA_WGMMA_TOK, MLA_WGMMA_STAGES, 1},
};

bool mla_tree_cuda_takes(const struct mla_tree_args *args) {
    bool known = (args->latent_dim == 512 && args->rope_dim == 64) ||
                 (args->latent_dim == 128 && args->rope_dim == 32);
    return known && (args->kv_dtype == KERNEL_BF16 || args->kv_dtype == KERNEL_FP8);
}

static size_t shared_bytes(const struct mla_tree_args *args, enum mla_cuda_tile tile) {
    if (tile == MLA_TILE_WGMMA) return mla_wgmma_shared_bytes(args->latent_dim);
    return mla_tile_shared_bytes(shapes[tile], args->kv_dtype, args->latent_dim, args->rope_dim);
}

/* The smallest that holds all queries, so that the cache is read once, or the largest that fits.
 * Where 64 fit, the products of warps are slower than memory, and those of warpgroups are not;
 * these multiply what copies bring, so an FP8 cache, which is widened first, is not for them. */
static enum mla_cuda_tile choose_tile(const struct mla_tree_args *args, uint32_t queries,
                                      const struct kernel_device *device) {
    enum mla_cuda_tile best = MLA_TILE_8;
    bool is_copied = args->kv_dtype != KERNEL_FP8;
    if (device->has_wgmma && is_copied && queries > shapes[MLA_TILE_32].queries)
        return MLA_TILE_WGMMA;
    for (int tile = MLA_TILE_8; tile <= MLA_TILE_64; tile++) {
        if (shared_bytes(args, (enum mla_cuda_tile)tile) > device->shared_bytes_max) break;
        best = (enum mla_cuda_tile)tile;
        if (shapes[tile].queries >= queries) break;
    }
    return best;
}

/* That run at a time, or whose partial results fit into the workspace's limit. */
static uint32_t blocks_at_a_time(const struct mla_cuda_plan *plan, size_t partial_bytes,
                                 const struct kernel_device *device) {
    size_t fit = (device->shared_bytes_max + BLOCK_RESERVED_BYTES) /
                 (plan->shared_bytes + BLOCK_RESERVED_BYTES);
    if (fit > shapes[plan->tile].blocks) fit = shapes[plan->tile].blocks;
    size_t blocks = device->multiprocessors * fit;
    size_t most = MLA_CUDA_SCRATCH_BYTES_MAX / (plan->tile_queries * partial_bytes);
    return (uint32_t)(blocks < most ? blocks : most);
}

struct mla_cuda_plan mla_tree_cuda_plan(const struct mla_tree_args *args,
                                        const struct kernel_device *device) {
    uint32_t queries = args->rows_max * args->heads;
    KERNEL_CHECK(queries > 0 && args->sequence_count > 0);
    enum mla_cuda_tile tile = choose_tile(args, queries, device);
    uint32_t tile_queries = shapes[tile].queries;
    struct mla_cuda_plan plan = {.tile = tile,
                                 .tile_queries = tile_queries,
                                 .threads = tile == MLA_TILE_WGMMA ? MLA_WGMMA_THREADS
                                                                   : MLA_CUDA_THREADS,
                                 .shared_bytes = shared_bytes(args, tile)};
    KERNEL_CHECK(plan.shared_bytes <= device->shared_bytes_max);

    size_t partial_bytes = (args->latent_dim + MLA_PARTIAL_STATS) * sizeof(float);
    uint32_t tiles = divide_up(queries, tile_queries);
    uint32_t worth = min_u32(divide_up(args->positions_max, MLA_CUDA_SPLIT_TOK),
                             MLA_CUDA_SPLITS_MAX);
    plan.blocks = max_u32(blocks_at_a_time(&plan, partial_bytes, device) / args->sequence_count, 1);
    plan.splits_max = max_u32(min_u32(worth, plan.blocks), 1);
    plan.grid_blocks = tiles;
    if (plan.splits_max == 1) return plan;

    uint32_t blocks = min_u32(plan.blocks, plan.splits_max * min_u32(tiles, plan.blocks));
    plan.grid_blocks = max_u32(tiles, blocks);
    plan.partials = blocks * tile_queries;
    plan.merge_queries = min_u32(queries, plan.blocks / 2 * tile_queries);
    plan.scratch_bytes = (size_t)plan.partials * args->sequence_count * partial_bytes;
    return plan;
}

/* Of launches with the same tile, the one with most rows needs most. Shares of the device are
 * rounded down, so that a larger tile, or more sequences, may need less. */
size_t mla_tree_cuda_scratch_bytes_max(const struct mla_tree_args *args,
                                       const struct kernel_device *device) {
    struct mla_tree_args fewer = *args;
    size_t most = 0;
    for (fewer.sequence_count = 1; fewer.sequence_count <= args->sequence_count;
         fewer.sequence_count++)
        for (int tile = MLA_TILE_8; tile <= MLA_TILE_COUNT; tile++) {
            uint32_t rows = args->rows_max;
            if (tile < MLA_TILE_COUNT) rows = min_u32(rows, shapes[tile].queries / args->heads);
            if (rows == 0) continue;
            fewer.rows_max = rows;
            size_t bytes = mla_tree_cuda_plan(&fewer, device).scratch_bytes;
            if (bytes > most) most = bytes;
        }
    return most;
}
