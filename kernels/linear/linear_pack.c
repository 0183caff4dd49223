#include "linear/linear_pack.h"

#include <string.h>

#include "linear/linear_stream.h"
#include "linear/linear_transpose.h"

#define STREAMED_BYTES                                                                             \
    4096u /* of a panel, turned at a time: it and its source stay in the first                     \
             level's cache */

static bool pack_bf16_panel(bf16 *panel, const void *source, size_t stride_bytes, uint32_t count,
                            uint32_t k);
static void pack_int4_panel(uint8_t *panel, const void *source, size_t stride_bytes, uint32_t count,
                            uint32_t k);

/* Pairs of bf16 are turned as numbers of 32 bits, and looked at as what they are. */
#define DEFINE_TURN(name, transpose, turned_type, stream, value_type, bound)                       \
    static bool name(void *panel, const void *source, size_t stride_bytes, uint32_t count,         \
                     uint32_t k) {                                                                 \
        enum { COLUMNS = STREAMED_BYTES / (KERNEL_PANEL * sizeof(turned_type)) };                  \
        _Alignas(64) turned_type turned[COLUMNS * KERNEL_PANEL];                                   \
        bool finite = true;                                                                        \
        for (uint32_t begin = 0; begin < k; begin += COLUMNS) {                                    \
            uint32_t columns = k - begin < COLUMNS ? k - begin : COLUMNS;                          \
            turned_type *to = (turned_type *)panel + (size_t)begin * KERNEL_PANEL;                 \
            transpose(turned, (const turned_type *)source + begin, stride_bytes, count, columns);  \
            finite &= stream((value_type *)to, (const value_type *)turned,                         \
                             columns * KERNEL_PANEL * sizeof *turned, bound);                      \
        }                                                                                          \
        return finite;                                                                             \
    }

DEFINE_TURN(turn_e4m3, linear_transpose_u8, uint8_t, linear_stream_u8, uint8_t, E4M3_NOT_FINITE)
DEFINE_TURN(turn_pairs, linear_transpose_u32, uint32_t, linear_stream_u16, uint16_t,
            BF16_NOT_FINITE)
DEFINE_TURN(turn_f32, linear_transpose_u32, uint32_t, linear_stream_u32, uint32_t, F32_NOT_FINITE)

static uint32_t panel_rows(uint32_t rows_left) {
    return rows_left < KERNEL_PANEL ? rows_left : KERNEL_PANEL;
}

static void check_range(uint32_t n, uint32_t row_begin, uint32_t row_count) {
    KERNEL_CHECK(row_begin % KERNEL_PANEL == 0 && row_begin <= n && row_count <= n - row_begin);
    KERNEL_CHECK(row_begin + row_count == n || row_count % KERNEL_PANEL == 0);
}

bool linear_pack_rows(enum linear_format format, void *data, uint32_t n, uint32_t k,
                      const void *source, size_t source_stride_bytes, uint32_t row_begin,
                      uint32_t row_count) {
    KERNEL_CHECK(format == LINEAR_F32 || format == LINEAR_BF16);
    check_range(n, row_begin, row_count);
    bool finite = true;
    for (uint32_t first = 0; first < row_count; first += KERNEL_PANEL) {
        uint32_t count = panel_rows(row_count - first);
        size_t panel = (row_begin + first) / KERNEL_PANEL;
        void *to = (char *)data + panel * linear_data_bytes(format, KERNEL_PANEL, k);
        const char *rows = (const char *)source + first * source_stride_bytes;
        if (format == LINEAR_BF16)
            finite &= pack_bf16_panel(to, rows, source_stride_bytes, count, k);
        else
            finite &= turn_f32(to, rows, source_stride_bytes, count, k);
    }
    linear_stream_end();
    return finite;
}

void linear_pack_transposed(enum linear_format format, void *data, uint32_t n, uint32_t k,
                            const void *source, size_t source_stride_bytes) {
    KERNEL_CHECK(format == LINEAR_F32 || format == LINEAR_BF16);
    size_t panel_bytes = linear_data_bytes(format, KERNEL_PANEL, k);
    memset(data, 0, linear_data_bytes(format, n, k));
    for (uint32_t first = 0; first < n; first += KERNEL_PANEL) {
        uint32_t count = panel_rows(n - first);
        char *panel = (char *)data + first / KERNEL_PANEL * panel_bytes;
        for (size_t i = 0; i < k; i++) {
            const char *row = (const char *)source + i * source_stride_bytes;
            if (format == LINEAR_F32) {
                memcpy((float *)(void *)panel + i * KERNEL_PANEL, row + first * sizeof(float),
                       count * sizeof(float));
                continue;
            }
            bf16 *pairs = (bf16 *)(void *)panel + i / 2 * 2 * KERNEL_PANEL + i % 2;
            for (uint32_t j = 0; j < count; j++)
                memcpy(&pairs[2 * j], row + (first + j) * sizeof(bf16), sizeof(bf16));
        }
    }
}

void linear_pack_int4(void *data, bf16 *scale, uint32_t n, uint32_t k, const void *packed,
                      size_t packed_stride_bytes, const bf16 *scales, size_t scales_stride_bytes,
                      uint32_t row_begin, uint32_t row_count) {
    KERNEL_CHECK(k % INT4_GROUP == 0);
    check_range(n, row_begin, row_count);
    uint32_t groups = k / INT4_GROUP;
    for (uint32_t first = 0; first < row_count; first += KERNEL_PANEL) {
        uint32_t count = panel_rows(row_count - first);
        size_t panel = (row_begin + first) / KERNEL_PANEL;
        pack_int4_panel((uint8_t *)data + panel * k * (KERNEL_PANEL / 2),
                        (const char *)packed + first * packed_stride_bytes, packed_stride_bytes,
                        count, k);
        linear_transpose_u16(scale + panel * groups * KERNEL_PANEL,
                             (const char *)scales + first * scales_stride_bytes,
                             scales_stride_bytes, count, groups, 0);
    }
    linear_stream_end();
}

bool linear_pack_fp8(void *data, float *scale, uint32_t n, uint32_t k, uint32_t block_begin,
                     const void *codes, size_t codes_stride_bytes, const float *scales,
                     size_t scales_stride_bytes, uint32_t row_begin, uint32_t row_count) {
    KERNEL_CHECK(block_begin < FP8_BLOCK);
    check_range(n, row_begin, row_count);
    size_t room = linear_fp8_blocks(k) * KERNEL_PANEL;
    uint32_t blocks = (block_begin + k + FP8_BLOCK - 1) / FP8_BLOCK;
    bool finite = true;
    for (uint32_t first = 0; first < row_count; first += KERNEL_PANEL) {
        uint32_t count = panel_rows(row_count - first);
        size_t panel = (row_begin + first) / KERNEL_PANEL;
        finite &= turn_e4m3((uint8_t *)data + panel * k * KERNEL_PANEL,
                            (const char *)codes + first * codes_stride_bytes, codes_stride_bytes,
                            count, k);
        float *blocks_of_panel = scale + panel * room;
        linear_transpose_u32((uint32_t *)blocks_of_panel,
                             (const char *)scales + first * scales_stride_bytes,
                             scales_stride_bytes, count, blocks);
        /* No product reads the rest; it is the same after every load all the same. */
        memset(blocks_of_panel + (size_t)blocks * KERNEL_PANEL, 0,
               (room - (size_t)blocks * KERNEL_PANEL) * sizeof(float));
    }
    linear_stream_end();
    return finite;
}

void linear_unpack_fp8(float *out, const uint8_t *codes, uint32_t k, uint32_t block_begin,
                       const float *scales) {
    for (uint32_t i = 0; i < k; i++)
        out[i] = e4m3_to_f32(codes[i]) * scales[(block_begin + i) / FP8_BLOCK];
}

/* panel[i/2][r][i%2] = source row r, element i; a last input without another has 0 beside it. */
static bool pack_bf16_panel(bf16 *panel, const void *source, size_t stride_bytes, uint32_t count,
                            uint32_t k) {
    bool finite = turn_pairs(panel, source, stride_bytes, count, k / 2);
    if (k % 2 == 0) return finite;
    bf16 last[2 * KERNEL_PANEL] = {0};
    for (uint32_t r = 0; r < count; r++)
        memcpy(&last[2 * r], (const char *)source + r * stride_bytes + (k - 1) * sizeof(bf16),
               sizeof(bf16));
    return linear_stream_u16(panel + (size_t)(k - 1) * KERNEL_PANEL, last, sizeof last,
                             BF16_NOT_FINITE) &&
           finite;
}

/* The nibbles of four inputs, one a byte: of inputs 0, 2, 1, 3 (little-endian). */
static uint32_t spread(uint32_t nibbles) {
    return (nibbles & 0x0f0f) | (nibbles & 0xf0f0) << 12;
}

/* Row r's inputs 4b, 4b + 1, ... are the nibbles of its bytes 2b and 2b + 1, low ones first: taken
 * together they are element b of a row of 16-bit numbers. Outputs that do not exist get the nibble
 * of weight 0, which is 8. */
static void pack_int4_panel(uint8_t *panel, const void *source, size_t stride_bytes, uint32_t count,
                            uint32_t k) {
    enum { BLOCKS = 32 }; /* turned at a time */
    _Alignas(16) uint16_t nibbles[BLOCKS * KERNEL_PANEL];
    uint32_t blocks = k / 4;
    for (uint32_t begin = 0; begin < blocks; begin += BLOCKS) {
        uint32_t turned = blocks - begin < BLOCKS ? blocks - begin : BLOCKS;
        linear_transpose_u16(nibbles, (const char *)source + begin * sizeof *nibbles, stride_bytes,
                             count, turned, 0x8888);
        uint32_t out[BLOCKS][KERNEL_PANEL / 2];
        for (uint32_t b = 0; b < turned; b++) {
            const uint16_t *low = nibbles + b * KERNEL_PANEL, *high = low + KERNEL_PANEL / 2;
            for (uint32_t j = 0; j < KERNEL_PANEL / 2; j++)
                out[b][j] = spread(low[j]) | spread(high[j]) << 4;
        }
        for (size_t at = 0; at < turned * sizeof out[0]; at += LINEAR_STREAM_BYTES)
            linear_stream_store(panel + at, (const char *)out + at);
        panel += turned * sizeof out[0];
    }
}
