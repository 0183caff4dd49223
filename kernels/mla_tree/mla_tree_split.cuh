/* What the kernels that attend over ranges of positions share: which tile and which range a block
 * has, and which positions a row sees. Private to mla_tree. */
#ifndef ESPALIER_MLA_TREE_SPLIT_CUH
#define ESPALIER_MLA_TREE_SPLIT_CUH

extern "C" {
#include "mla_tree/mla_tree_cuda.h"
#include "mla_tree/mla_tree_tile.h"
}

#include "cuda/device.cuh"

struct split_args {
    struct mla_tree_args op;
    struct mla_cuda_plan plan;
    float *partial;      /* [sequences, partials, R]: not yet divided by the sum */
    float *partial_stat; /* [sequences, partials, 2]: maximum (in powers of 2), sum */
};

/* What the block works on. */
struct task {
    struct mla_sequence seq;
    uint32_t query_begin,
        query_count; /* of the sequence's row_count * heads; none: nothing to do */
    uint32_t split, splits;
    uint32_t tok_begin, tok_end; /* of this range */
};

static __device__ uint32_t count_tiles(const struct split_args &args,
                                       const struct mla_sequence &seq) {
    return (seq.row_count * args.op.heads + args.plan.tile_queries - 1) / args.plan.tile_queries;
}

/* Ranges of a sequence: as many as its share of the device has blocks for, and its positions are
 * worth. */
static __device__ uint32_t count_splits(const struct split_args &args,
                                        const struct mla_sequence &seq, uint32_t tiles) {
    uint32_t splits = args.plan.blocks / tiles;
    uint32_t positions = seq.committed + seq.row_count;
    uint32_t worth = (positions + MLA_CUDA_SPLIT_TOK - 1) / MLA_CUDA_SPLIT_TOK;
    if (splits > worth) splits = worth;
    if (splits > args.plan.splits_max) splits = args.plan.splits_max;
    return splits > 0 ? splits : 1;
}

/* Tiles of one range lie side by side, so that those after the first find it in the L2 cache. */
template <uint32_t Tok, uint32_t Queries>
static __device__ struct task find_task(const struct split_args &args) {
    struct task task;
    task.seq = args.op.sequences[blockIdx.y];
    task.query_count = 0;
    uint32_t tiles = count_tiles(args, task.seq);
    if (tiles == 0) return task;
    task.splits = count_splits(args, task.seq, tiles);
    task.split = blockIdx.x / tiles;
    if (task.split >= task.splits) return task;
    uint32_t queries = task.seq.row_count * args.op.heads;
    task.query_begin = blockIdx.x % tiles * Queries;
    task.query_count = queries - task.query_begin < Queries ? queries - task.query_begin : Queries;
    uint32_t last_row = (task.query_begin + task.query_count - 1) / args.op.heads;
    uint32_t rows_seen = task.seq.ancestors ? task.seq.row_count : last_row + 1;
    uint32_t positions = task.seq.committed + rows_seen;

    /* Ranges are cut for the whole sequence, so that all of its tiles read the same ones. */
    uint32_t stages = (task.seq.committed + task.seq.row_count + Tok - 1) / Tok;
    uint32_t stages_a_range = (stages + task.splits - 1) / task.splits;
    task.tok_begin = task.split * stages_a_range * Tok;
    task.tok_end = task.tok_begin + stages_a_range * Tok;
    if (task.tok_end > positions) task.tok_end = positions;
    if (task.tok_begin > task.tok_end) task.tok_begin = task.tok_end;
    return task;
}

/* Two columns of a query as bf16; of an absent one, zeros. */
template <uint32_t Latent>
static __device__ uint32_t load_query_pair(const struct split_args &args, const struct task &task,
                                           uint32_t query, uint32_t column) {
    if (query >= task.query_count) return 0;
    uint32_t of_sequence = task.query_begin + query;
    size_t row = task.seq.row_begin + of_sequence / args.op.heads;
    uint32_t head = of_sequence % args.op.heads;
    const float *from = column < Latent
                            ? args.op.q_latent + (row * args.op.heads + head) * Latent + column
                            : args.op.q_rope + row * args.op.q_rope_row_stride +
                                  head * args.op.q_rope_head_stride + (column - Latent);
    return device_pack_bf16(from[0], from[1]);
}

static __device__ bool sees(const struct mla_sequence &seq, uint32_t row, uint32_t position) {
    if (position < seq.committed) return true;
    uint32_t member = position - seq.committed;
    return seq.ancestors ? (seq.ancestors[row] >> member & 1) != 0 : member <= row;
}

/* Where a task's results go: the first of its queries among the partial results. */
static __device__ size_t first_partial(const struct split_args &args, const struct task &task) {
    uint32_t queries = task.seq.row_count * args.op.heads;
    return (size_t)blockIdx.y * args.plan.partials + task.split * queries + task.query_begin;
}

/* The kernel of MLA_TILE_WGMMA. */
void (*mla_tree_wgmma_kernel(uint32_t latent_dim))(struct split_args);

#endif
