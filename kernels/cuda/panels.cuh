/* Products of packed weights (linear/linear.h) with a few rows, by one warp on its own: it streams
 * two panels, 64 outputs, through a ring of stages in shared memory that no other warp touches, so
 * that its loop meets nobody but itself. The panels are streamed as they were packed at load.
 *
 * A step is 32 inputs. The weights are the left operand of the product, [64 outputs, 32 inputs],
 * and eight rows are its right one, so that one row wastes seven columns of a product and no byte
 * of memory. Which inputs a lane holds is free as long as both operands agree: lane l takes, of
 * inputs [0, 16) and [16, 32), those from 4 (l % 4) on, four at a time, because four is what a word
 * of INT4 panels holds. Rows are laid out for that (panel_place), 16 bytes a lane.
 *
 * Outputs of lane l: 4 (l / 4 % 4) + t and 16 more, t < 4, of panel l / 16; sums[tile][t] holds
 * them for rows 2 (l % 4) and 2 (l % 4) + 1 of the tile: first, first, second, second output. */
#ifndef ESPALIER_PANELS_CUH
#define ESPALIER_PANELS_CUH

extern "C" {
#include "cuda/panels.h"
#include "linear/linear.h"
}

#include "cuda/widen.cuh"

#define PANEL_NO_ROW   UINT32_MAX
#define PANEL_SUM_LINE (PANEL_OUTPUTS + 4u) /* floats a row of sums takes in shared memory */
#define PANEL_ROW      (PANEL_STEP * (uint32_t)sizeof(bf16)) /* bytes of a row's step */

/* Where, among the 32 of its step, an input of a row lies. */
DEVICE_INLINE uint32_t panel_place(uint32_t input) {
    return input % 16 / 4 * 8 + input / 16 * 4 + input % 4;
}

/* A format's step of a panel: bytes of data and of scales, and where in a stage the i-th 16 bytes
 * go, so that eight lanes that read together find theirs in different banks. */
template <enum linear_format Format> struct panel_format;

template <> struct panel_format<LINEAR_INT4> {
    static constexpr uint32_t data_bytes = 512, scale_bytes = 64;
    static constexpr bool scaled = true;
    static DEVICE_INLINE uint32_t place(uint32_t i, uint32_t panel) {
        (void)panel;
        return i ^ (i >> 2 & 2);
    }
};

template <> struct panel_format<LINEAR_BF16> {
    static constexpr uint32_t data_bytes = 2048, scale_bytes = 0;
    static constexpr bool scaled = false;
    static DEVICE_INLINE uint32_t place(uint32_t i, uint32_t panel) {
        (void)panel;
        return i ^ (i >> 3 & 6);
    }
};

template <> struct panel_format<LINEAR_FP8> {
    static constexpr uint32_t data_bytes = 1024, scale_bytes = 128;
    static constexpr bool scaled = true;
    static DEVICE_INLINE uint32_t place(uint32_t i, uint32_t panel) {
        return i ^ (i >> 2 & 6) ^ panel;
    }
};

/* Steps that share a row of scales. */
template <enum linear_format Format>
static constexpr uint32_t panel_scale_steps = Format == LINEAR_FP8 ? FP8_BLOCK / PANEL_STEP : 1;

/* The two panels a warp works on. */
struct panel_pair {
    const unsigned char *data[2]; /* NULL: there is no such panel, its weights are zero */
    const unsigned char *scale[2];
    uint32_t inputs;
    uint32_t first_step; /* of the first block of scales */
};

template <enum linear_format Format>
static __device__ struct panel_pair panel_pair_of(const struct linear_weight &weight,
                                                  uint32_t first, uint32_t second,
                                                  uint32_t batch = 0) {
    uint32_t panels = (weight.n + KERNEL_PANEL - 1) / KERNEL_PANEL;
    uint32_t inputs = Format == LINEAR_BF16 ? (weight.k + 1) / 2 * 2 : weight.k;
    size_t data_bytes = (size_t)inputs * (panel_format<Format>::data_bytes / PANEL_STEP);
    size_t scale_rows = Format == LINEAR_FP8 ? weight.k / FP8_BLOCK + 2 : weight.k / PANEL_STEP;
    size_t scale_bytes = scale_rows * panel_format<Format>::scale_bytes;
    struct panel_pair pair;
    pair.inputs = inputs;
    pair.first_step = Format == LINEAR_FP8 ? weight.block_begin / PANEL_STEP : 0;
    const unsigned char *data = (const unsigned char *)weight.data + batch * panels * data_bytes;
    const unsigned char *scale = (const unsigned char *)weight.scale + batch * panels * scale_bytes;
    pair.data[0] = first < panels ? data + first * data_bytes : NULL;
    pair.data[1] = second < panels ? data + second * data_bytes : NULL;
    pair.scale[0] = scale + first * scale_bytes;
    pair.scale[1] = scale + second * scale_bytes;
    return pair;
}

/* ============================== the ring ====================================================== */

template <enum linear_format Format, uint32_t Tiles> struct panel_stage {
    typedef panel_format<Format> format;
    static constexpr uint32_t scale_at = 2 * format::data_bytes;
    static constexpr uint32_t rows_at = scale_at + 2 * format::scale_bytes;
    static constexpr uint32_t bytes = rows_at + Tiles * PANEL_TILE * PANEL_ROW;
};

/* The rows of the tiles: row lane / 4 of each is this lane's to copy. */
template <uint32_t Tiles> struct panel_rows {
    const bf16 *base;
    uint32_t step[Tiles]; /* where the lane's row begins, in steps; PANEL_NO_ROW: a row of zeros */
};

/* Begin to copy step `step` of the panels and step `row_step` of the rows. Not wanted: zeros. */
template <enum linear_format Format, uint32_t Tiles>
static __device__ void panel_copy_step(unsigned char *stage, const struct panel_pair &pair,
                                       uint32_t step, const struct panel_rows<Tiles> &rows,
                                       uint32_t row_step, bool wanted) {
    typedef panel_stage<Format, Tiles> shape;
    typedef panel_format<Format> format;
    uint32_t lane = threadIdx.x % WARP_LANES;
    /* Steps are whole but for the last one, and of INT4 that one too. */
    uint32_t end = Format == LINEAR_INT4
                       ? format::data_bytes
                       : (pair.inputs - step * PANEL_STEP) * (format::data_bytes / PANEL_STEP);
#pragma unroll
    for (uint32_t panel = 0; panel < 2; panel++)
#pragma unroll
        for (uint32_t i = 0; i < format::data_bytes / 16; i += WARP_LANES)
            device_copy16(stage + panel * format::data_bytes + format::place(i + lane, panel) * 16,
                          pair.data[panel] + (size_t)step * format::data_bytes + (i + lane) * 16,
                          wanted && pair.data[panel] != NULL && (i + lane) * 16 < end);
    if constexpr (format::scale_bytes > 0) {
        constexpr uint32_t lanes = format::scale_bytes / 16;
        uint32_t scale_row = (pair.first_step + step) / panel_scale_steps<Format>;
        const unsigned char *scale = lane < lanes ? pair.scale[0] : pair.scale[1];
        bool present = (lane < lanes ? pair.data[0] : pair.data[1]) != NULL;
        if (lane < 2 * lanes)
            device_copy16(stage + shape::scale_at + lane * 16,
                          scale + (size_t)scale_row * format::scale_bytes + lane % lanes * 16,
                          wanted && present);
    }
#pragma unroll
    for (uint32_t tile = 0; tile < Tiles; tile++)
        device_copy16(stage + shape::rows_at + (tile * WARP_LANES + lane) * 16,
                      rows.base + ((size_t)rows.step[tile] + row_step) * PANEL_STEP + lane % 4 * 8,
                      wanted && rows.step[tile] != PANEL_NO_ROW);
}

/* Stages of one warp. Steps are begun and taken in the same order; stages - 1 may be under way. */
template <enum linear_format Format, uint32_t Tiles, uint32_t RingBytes> struct panel_ring {
    static constexpr uint32_t stage_bytes = panel_stage<Format, Tiles>::bytes;
    static constexpr uint32_t stages = RingBytes / stage_bytes;
    static_assert(stages >= 2, "a stage is read while another is filled");

    unsigned char *base;
    uint32_t fill, read; /* the stage that is filled next, that is read next */

    DEVICE_INLINE void init(unsigned char *shared) {
        base = shared + threadIdx.x / WARP_LANES * RingBytes;
        fill = read = 0;
    }

    DEVICE_INLINE unsigned char *next_to_fill() {
        unsigned char *stage = base + fill * stage_bytes;
        fill = fill + 1 == stages ? 0 : fill + 1;
        return stage;
    }

    /* The oldest step under way, when it has landed. All lanes are then done with the one before,
     * whose stage is the next to fill. */
    DEVICE_INLINE const unsigned char *take() {
        device_copy_wait<(int)stages - 2>();
        device_warp_barrier();
        const unsigned char *stage = base + read * stage_bytes;
        read = read + 1 == stages ? 0 : read + 1;
        return stage;
    }
};

/* ============================== the product =================================================== */

/* weights[half][t]: the left operand for outputs t of this lane and inputs [16 half, 16 half + 16);
 * data: of the lane's panel. */
template <enum linear_format Format>
static __device__ void panel_load_weights(const unsigned char *data, uint32_t panel,
                                          uint32_t weights[2][4][4]) {
    typedef panel_format<Format> format;
    uint32_t column = threadIdx.x / 4 % 4, quad = threadIdx.x % 4;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t word[4];
        if constexpr (Format == LINEAR_INT4) {
            device_load16(word, data + format::place((half * 4 + quad) * 4 + column, panel) * 16);
#pragma unroll
            for (uint32_t i = 0; i < 16; i++)
                weights[half][i / 4][i % 4] = widen_int4(word[i / 4] >> i % 4 * 4);
        } else if constexpr (Format == LINEAR_FP8) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) { /* two inputs of four outputs */
                uint32_t input = half * 16 + quad * 4 + i / 2 * 2;
#pragma unroll
                for (uint32_t j = 0; j < 2; j++) {
                    uint32_t at = format::place((input + j) * 2 + i % 2, panel);
                    word[j] = device_load4(data + at * 16 + column * 4);
                }
#pragma unroll
                for (uint32_t t = 0; t < 4; t++)
                    weights[half][t][i] = widen_fp8((word[0] >> t * 8 & 0xff) |
                                                    (word[1] >> t * 8 & 0xff) << 16);
            }
        } else {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t pair_row = half * 8 + quad * 2 + i / 2;
                uint32_t at = format::place(pair_row * 8 + i % 2 * 4 + column, panel);
                device_load16(word, data + at * 16);
#pragma unroll
                for (uint32_t t = 0; t < 4; t++)
                    weights[half][t][i] = word[t];
            }
        }
    }
}

/* Scales of this lane's outputs: four, and the four that lie sixteen further. */
template <enum linear_format Format>
static __device__ void panel_load_scales(const unsigned char *scales, float low[4], float high[4]) {
    uint32_t lane = threadIdx.x % WARP_LANES;
    const unsigned char *mine = scales + lane / 16 * panel_format<Format>::scale_bytes;
    if constexpr (Format == LINEAR_INT4) {
        uint2 first = *(const uint2 *)(mine + lane / 4 % 4 * 8);
        uint2 second = *(const uint2 *)(mine + 32 + lane / 4 % 4 * 8);
        low[0] = device_low_bf16(first.x), low[1] = device_high_bf16(first.x);
        low[2] = device_low_bf16(first.y), low[3] = device_high_bf16(first.y);
        high[0] = device_low_bf16(second.x), high[1] = device_high_bf16(second.x);
        high[2] = device_low_bf16(second.y), high[3] = device_high_bf16(second.y);
    } else if constexpr (Format == LINEAR_FP8) {
        float4 first = *(const float4 *)(mine + lane / 4 % 4 * 16);
        float4 second = *(const float4 *)(mine + 64 + lane / 4 % 4 * 16);
        low[0] = first.x, low[1] = first.y, low[2] = first.z, low[3] = first.w;
        high[0] = second.x, high[1] = second.y, high[2] = second.z, high[3] = second.w;
    }
}

/* sums += weights x rows of the step in `stage`. */
template <enum linear_format Format, uint32_t Tiles>
static __device__ void panel_multiply(const unsigned char *stage, float sums[Tiles][4][4]) {
    typedef panel_stage<Format, Tiles> shape;
    uint32_t lane = threadIdx.x % WARP_LANES, panel = lane / 16;
    uint32_t weights[2][4][4];
    float low[4], high[4];
    panel_load_weights<Format>(stage + panel * panel_format<Format>::data_bytes, panel, weights);
    panel_load_scales<Format>(stage + shape::scale_at, low, high);
#pragma unroll
    for (uint32_t tile = 0; tile < Tiles; tile++) {
        uint32_t rows[4];
        device_load16(rows, stage + shape::rows_at + (tile * WARP_LANES + lane) * 16);
#pragma unroll
        for (uint32_t t = 0; t < 4; t++) {
            if constexpr (panel_format<Format>::scaled) {
                float part[4];
                device_mma_bf16_first(part, weights[0][t], rows);
                device_mma_bf16(part, weights[1][t], rows + 2);
                sums[tile][t][0] = fmaf(part[0], low[t], sums[tile][t][0]);
                sums[tile][t][1] = fmaf(part[1], low[t], sums[tile][t][1]);
                sums[tile][t][2] = fmaf(part[2], high[t], sums[tile][t][2]);
                sums[tile][t][3] = fmaf(part[3], high[t], sums[tile][t][3]);
            } else {
                device_mma_bf16(sums[tile][t], weights[0][t], rows);
                device_mma_bf16(sums[tile][t], weights[1][t], rows + 2);
            }
        }
    }
}

/* ============================== the stream ==================================================== */

/* Begin as many steps as may be under way. begin_step() begins the warp's next one in the stage
 * that is next to fill, or does nothing where none is left. */
template <enum linear_format Format, uint32_t Tiles, uint32_t RingBytes, typename BeginStep>
DEVICE_INLINE void panel_stream_begin(struct panel_ring<Format, Tiles, RingBytes> &ring,
                                      BeginStep begin_step) {
    for (uint32_t ahead = 0; ahead + 1 < ring.stages; ahead++) {
        begin_step();
        device_copy_commit();
    }
}

/* sums += the oldest step under way, in whose predecessor's place another begins. */
template <enum linear_format Format, uint32_t Tiles, uint32_t RingBytes, typename BeginStep>
DEVICE_INLINE void panel_stream_step(struct panel_ring<Format, Tiles, RingBytes> &ring,
                                     BeginStep begin_step, float sums[Tiles][4][4]) {
    const unsigned char *stage = ring.take();
    begin_step();
    device_copy_commit();
    panel_multiply<Format, Tiles>(stage, sums);
}

/* DO(tiles), with as many tiles of rows as `rows` need. */
#define PANEL_TILES_FOR_ROWS(rows, DO)                                                             \
    if ((rows) <= 1 * PANEL_TILE)                                                                  \
        DO(1);                                                                                     \
    else if ((rows) <= 2 * PANEL_TILE)                                                             \
        DO(2);                                                                                     \
    else                                                                                           \
        DO(PANEL_TILES_MAX)

/* This lane's sums of a tile to [8 rows, PANEL_SUM_LINE] in shared memory. */
static __device__ void panel_share_sums(float *to, const float sums[4][4]) {
    uint32_t lane = threadIdx.x % WARP_LANES;
    float *mine = to + lane % 4 * 2 * PANEL_SUM_LINE + lane / 16 * KERNEL_PANEL + lane / 4 % 4 * 4;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        float4 four = {sums[0][i], sums[1][i], sums[2][i], sums[3][i]};
        *(float4 *)(mine + i % 2 * PANEL_SUM_LINE + i / 2 * 16) = four;
    }
}

#endif
