/* As in linear_tile.c, rows that are not packed are copied side by side, group by group, and the
 * function that does the work is compiled for each number of rows. */
#include "linear/linear_int8.h"

#include "simd/i32x16.h"

/* Of the copy: leaves half of the first-level cache. */
#define COPY_GROUPS (16384u / sizeof(struct linear_int8_group))

/* As far ahead as linear_tile.c asks for weights. */
#define AHEAD_BYTES 4096

#define GROUP       LINEAR_CHUNK
#define GROUP_BYTES (GROUP * KERNEL_PANEL / 2)
#define BLOCK_BYTES 64u /* four inputs of a panel */

_Static_assert(GROUP == INT4_GROUP, "weights and activations have scales of the same inputs");

static uint32_t copy_groups(struct linear_int8_group *copy, const struct linear_rows *x,
                            uint32_t k_begin, uint32_t k_end);
static void cut_group(struct linear_int8_group *group, uint32_t begin, uint32_t end);
static void panel_dot(float (*sum)[KERNEL_PANEL], uint32_t rows, const uint8_t *data,
                      const bf16 *scale, const struct linear_int8_group *x, uint32_t groups);

void linear_int8_round(struct linear_int8_group *out, const float x[LINEAR_CHUNK]) {
    f32x16 lo = f32x16_load(x), hi = f32x16_load(x + 16), zero = f32x16_zero();
    f32x16 size = f32x16_max(f32x16_max(lo, f32x16_sub(zero, lo)),
                             f32x16_max(hi, f32x16_sub(zero, hi)));
    float lane[16], greatest = 0;
    f32x16_store(lane, size);
    for (int i = 0; i < 16; i++)
        greatest = lane[i] > greatest ? lane[i] : greatest;
    /* Zero times what is finite. */
    bool finite = f32x16_sum(f32x16_fma(lo, zero, f32x16_mul(hi, zero))) == 0;

    *out = (struct linear_int8_group){.scale = finite ? 0 : NAN};
    if (!finite || greatest < 0x1p-100f) return;
    f32x16 steps = f32x16_set1(127.0f / greatest);
    int8_t whole[GROUP];
    i32x16_to_i8(whole, i32x16_round(f32x16_mul(lo, steps)));
    i32x16_to_i8(whole + 16, i32x16_round(f32x16_mul(hi, steps)));
    int32_t sum = 0;
    for (uint32_t i = 0; i < GROUP; i += 4) {
        const int8_t four[4] = {whole[i], whole[i + 2], whole[i + 1], whole[i + 3]};
        memcpy(out->value + i, four, sizeof four);
        sum += four[0] + four[1] + four[2] + four[3];
    }
    out->scale = greatest / 127.0f;
    out->offset = -8 * sum;
}

void linear_int8_dot(struct linear_tile *tile, const struct linear_weight *weight,
                     uint32_t panel_begin, uint32_t panel_count, uint32_t segments,
                     const struct linear_rows *x) {
    struct linear_int8_group copy[COPY_GROUPS];
    const uint32_t k_count = weight->k, width = k_count / segments;
    const void *packed = x->count == 1 && !x->packed ? x->row[0] : x->packed;
    for (uint32_t k = 0, end; k < k_count; k = end) {
        const struct linear_int8_group *rows = copy;
        end = k_count;
        if (width % GROUP != 0)
            end = copy_groups(copy, x, k, k - k % width + width);
        else if (packed)
            rows = packed;
        else
            end = copy_groups(copy, x, k, k_count);
        for (uint32_t p = 0; p < panel_count; p++) {
            for (uint32_t from = k, to; from < end; from = to) {
                uint32_t segment = from / width, group = from / GROUP;
                to = (segment + 1) * width < end ? (segment + 1) * width : end;
                float(*sum)[KERNEL_PANEL] = tile[segment].sum[p];
                if (from == segment * width) memset(sum, 0, x->count * sizeof(sum[0]));
                size_t at = (size_t)(panel_begin + p) * (k_count / GROUP) + group;
                panel_dot(sum, x->count, (const uint8_t *)weight->data + at * GROUP_BYTES,
                          (const bf16 *)weight->scale + at * KERNEL_PANEL,
                          rows + (size_t)(group - k / GROUP) * x->count,
                          divide_up(to, GROUP) - group);
            }
        }
    }
}

static const struct linear_int8_group *group_of(const struct linear_rows *x, uint32_t r,
                                                uint32_t g) {
    if (!x->packed) return (const struct linear_int8_group *)x->row[r] + g;
    return (const struct linear_int8_group *)x->packed + (size_t)g * x->count + r;
}

/* The groups from input k_begin on, as many as there is room for; where they end. */
static uint32_t copy_groups(struct linear_int8_group *copy, const struct linear_rows *x,
                            uint32_t k_begin, uint32_t k_end) {
    uint32_t first = k_begin / GROUP, last = divide_up(k_end, GROUP);
    uint32_t room = (uint32_t)COPY_GROUPS / x->count;
    if (last - first > room) last = first + room;
    for (uint32_t g = first; g < last; g++) {
        uint32_t begin = g * GROUP < k_begin ? k_begin - g * GROUP : 0;
        uint32_t end = k_end - g * GROUP < GROUP ? k_end - g * GROUP : GROUP;
        for (uint32_t r = 0; r < x->count; r++, copy++) {
            *copy = *group_of(x, r, g);
            if (end - begin < GROUP) cut_group(copy, begin, end);
        }
    }
    return last * GROUP < k_end ? last * GROUP : k_end;
}

/* Inputs outside count as zero. */
static void cut_group(struct linear_int8_group *group, uint32_t begin, uint32_t end) {
    static const uint8_t input[4] = {0, 2, 1, 3};
    int32_t sum = 0;
    for (uint32_t i = 0; i < GROUP; i++) {
        uint32_t k = (i & ~3u) + input[i & 3];
        if (k < begin || k >= end) group->value[i] = 0;
        sum += group->value[i];
    }
    group->offset = -8 * sum;
}

/* sum[r] += the groups at x times those at data and scale. */
F32X16_INLINE void dot(const uint32_t rows, float (*sum)[KERNEL_PANEL], const uint8_t *data,
                       const bf16 *scale, const struct linear_int8_group *x, uint32_t groups) {
    for (; groups > 0; groups--, x += rows, scale += KERNEL_PANEL) {
        i32x16 acc[LINEAR_TILE_ROWS][2];
        F32X16_UNROLL
        for (uint32_t r = 0; r < rows; r++)
            acc[r][0] = acc[r][1] = i32x16_set1(x[r].offset);
        F32X16_UNROLL
        for (uint32_t i = 0; i < GROUP; i += 4, data += BLOCK_BYTES) {
            u8x64 low, high;
            __builtin_prefetch(data + AHEAD_BYTES, 0, 2);
            u8x64_nibbles(data, &low, &high);
            F32X16_UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                acc[r][0] = i32x16_dot4(acc[r][0], low, x[r].value + i);
                acc[r][1] = i32x16_dot4(acc[r][1], high, x[r].value + i);
            }
        }
        f32x16 weight[2] = {f32x16_load_bf16(scale), f32x16_load_bf16(scale + 16)};
        F32X16_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            f32x16 of_x = f32x16_set1(x[r].scale);
            F32X16_UNROLL
            for (uint32_t half = 0; half < 2; half++) {
                float *to = sum[r] + 16 * half;
                f32x16_store(to, f32x16_fma(i32x16_to_f32(acc[r][half]),
                                            f32x16_mul(of_x, weight[half]), f32x16_load(to)));
            }
        }
    }
}

#define CASE(rows)                                                                                 \
    case rows: dot(rows, sum, data, scale, x, groups); break;

static void panel_dot(float (*sum)[KERNEL_PANEL], uint32_t rows, const uint8_t *data,
                      const bf16 *scale, const struct linear_int8_group *x, uint32_t groups) {
    switch (rows) {
        LINEAR_TILE_FOR_ROWS(CASE)
    default: KERNEL_CHECK(rows == 0);
    }
}
