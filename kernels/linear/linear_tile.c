/* Products take x as chunks of 32 inputs, each the rows' parts one after the other: every row is
 * then one constant away from one register, however far apart the caller's rows are. What is not
 * packed so is copied, a stretch of k at a time; a row alone is its own copy. Sums live in
 * registers over a segment, and in the tile where a stretch ends within one.
 *
 *     copy [chunk][row][32]
 *
 * Sets without dot products of pairs have rows of bf16 copied as f32, which a multiply-add reads by
 * itself: otherwise each pair of each row would be split into two numbers for every panel anew, two
 * instructions beside four multiply-adds.
 *
 * One function, written for any format, activation and number of rows and compiled for each by
 * inlining with constants; `format`, `narrow` and `rows` below are always such constants. */
#include "linear/linear_tile.h"

#include "linear/linear_int8.h"
#include "simd/f32x16.h"

/* Bytes of the copy, whatever the number of rows. It passes through the first-level cache beside
 * the weights and need not fit there. */
#define COPY_BYTES 32768u

#define CHUNK LINEAR_CHUNK
_Static_assert(CHUNK == INT4_GROUP, "a chunk is a group");

typedef float tile_sums[LINEAR_TILE_ROWS][KERNEL_PANEL];

/* A panel's weights from input k on. */
struct panel {
    const struct linear_weight *weight;
    const void *data;
    const void *scale;  /* of the group or block that input k is in */
    uint32_t scale_end; /* the first input that is not of it */
};

/* Chunks of x that products can read, from the one that input k_begin is in. */
struct stretch {
    const char *chunks;
    uint32_t k_begin, k_end;
};

static uint32_t stretch_end(const struct linear_weight *weight, const struct linear_rows *x,
                            uint32_t k_begin, uint32_t k_end);
static struct stretch copy_rows(void *copy, const struct linear_rows *x, uint32_t k_begin,
                                uint32_t k_end);
static void dot_stretch(struct linear_tile *tile, const struct linear_weight *weight,
                        uint32_t panel_begin, uint32_t panel_count, uint32_t width,
                        const struct linear_rows *x, const struct stretch *stretch);
static struct panel panel_at(const struct linear_weight *weight, bool narrow, size_t idx,
                             uint32_t k);
static void panel_dot(const struct panel *panel, tile_sums sum, const struct linear_rows *x,
                      const void *chunk, uint32_t k, uint32_t k_end, bool first);

static size_t element_bytes(enum kernel_dtype dtype) {
    return dtype == KERNEL_BF16 ? sizeof(bf16) : sizeof(float);
}

/* Whether products of so many rows read them as f32. */
F32X16_INLINE bool reads_f32(const bool narrow, const uint32_t rows) {
    return !narrow || linear_tile_widens(KERNEL_BF16, rows);
}

/* Of the copy, and of what is read where it is. */
static size_t chunk_bytes(const struct linear_rows *x) {
    bool wide = reads_f32(x->dtype == KERNEL_BF16, x->count);
    return x->count * CHUNK * element_bytes(wide ? KERNEL_F32 : KERNEL_BF16);
}

/* Of FP8 from input k on. */
static uint32_t block_end(const struct linear_weight *weight, uint32_t k) {
    return k + FP8_BLOCK - (weight->block_begin + k) % FP8_BLOCK;
}

void linear_tile_dot(struct linear_tile *tile, const struct linear_weight *weight,
                     uint32_t panel_begin, uint32_t panel_count, uint32_t segments,
                     const struct linear_rows *x) {
    if (x->dtype == KERNEL_INT8) {
        linear_int8_dot(tile, weight, panel_begin, panel_count, segments, x);
        return;
    }
    _Alignas(64) char copy[COPY_BYTES];
    const uint32_t width = weight->k / segments;
    const void *packed = x->count == 1 && !x->packed ? x->row[0] : x->packed;
    /* What is packed is read where it is, unless inputs outside a segment or block must read as
     * zero. */
    bool in_blocks = weight->format == LINEAR_FP8 && x->dtype == KERNEL_BF16;
    bool blocks_cut_pairs = in_blocks && weight->block_begin % 2 != 0;
    bool segments_cut_pairs = (in_blocks || weight->format == LINEAR_BF16) && width % 2 != 0;
    bool widened = linear_tile_widens(x->dtype, x->count);
    struct stretch stretch = {.k_end = 0};
    uint32_t saved = x->dtype == KERNEL_BF16 ? f32x16_flush_begin() : 0;
    for (uint32_t k = 0; k < weight->k; k = stretch.k_end) {
        uint32_t end = segments_cut_pairs ? k - k % width + width : weight->k;
        if (blocks_cut_pairs) end = min_u32(end, block_end(weight, k));
        if (segments_cut_pairs || blocks_cut_pairs || widened || !packed)
            stretch = copy_rows(copy, x, k, stretch_end(weight, x, k, end));
        else
            stretch = (struct stretch){packed, 0, weight->k};
        dot_stretch(tile, weight, panel_begin, panel_count, width, x, &stretch);
    }
    if (x->dtype == KERNEL_BF16) f32x16_flush_end(saved);
}

/* Panel by panel, the segments in it one after the other: memory is read in order. */
static void dot_stretch(struct linear_tile *tile, const struct linear_weight *weight,
                        uint32_t panel_begin, uint32_t panel_count, uint32_t width,
                        const struct linear_rows *x, const struct stretch *stretch) {
    for (uint32_t p = 0; p < panel_count; p++) {
        for (uint32_t k = stretch->k_begin, end; k < stretch->k_end; k = end) {
            uint32_t segment = k / width;
            end = (segment + 1) * width < stretch->k_end ? (segment + 1) * width : stretch->k_end;
            struct panel panel = panel_at(weight, x->dtype == KERNEL_BF16, panel_begin + p, k);
            const char *chunk = stretch->chunks +
                                (k / CHUNK - stretch->k_begin / CHUNK) * chunk_bytes(x);
            panel_dot(&panel, tile[segment].sum[p], x, chunk, k, end, k == segment * width);
        }
    }
}

void linear_tile_narrow(enum kernel_dtype dtype, void *out, size_t chunk_stride, const float *x,
                        uint32_t k) {
    char *to = out;
    uint32_t i = 0;
    for (; i + CHUNK <= k; i += CHUNK, to += chunk_stride) {
        if (dtype == KERNEL_INT8)
            linear_int8_round((struct linear_int8_group *)(void *)to, x + i);
        else
            bf16x32_store((bf16 *)(void *)to,
                          bf16x32_round(f32x16_load(x + i), f32x16_load(x + i + 16)));
    }
    if (i == k) return;
    float rest[CHUNK] = {0};
    memcpy(rest, x + i, (k - i) * sizeof(float));
    linear_tile_narrow(dtype, to, chunk_stride, rest, CHUNK);
}

/* Row r's part of the chunk that begins with input k. */
static const char *chunk_of(const struct linear_rows *x, uint32_t r, uint32_t k) {
    size_t bytes = element_bytes(x->dtype);
    if (!x->packed) return (const char *)x->row[r] + k * bytes;
    return (const char *)x->packed + ((size_t)k * x->count + r * CHUNK) * bytes;
}

/* How far a copy of the inputs from k_begin on goes: as far as there is room, but a sum over a
 * block of FP8 is not kept from one to the next. */
static uint32_t stretch_end(const struct linear_weight *weight, const struct linear_rows *x,
                            uint32_t k_begin, uint32_t k_end) {
    uint32_t room = (uint32_t)(COPY_BYTES / chunk_bytes(x)) * CHUNK;
    uint32_t end = k_begin - k_begin % CHUNK + room;
    if (end >= k_end) return k_end;
    if (weight->format == LINEAR_FP8 && x->dtype == KERNEL_BF16)
        end -= (weight->block_begin + end) % FP8_BLOCK;
    return end;
}

/* A row's chunk into the copy; returns what follows. */
static char *copy_chunk(char *to, const char *from, size_t bytes, bool widened) {
    if (widened) {
        const bf16 *values = (const bf16 *)(const void *)from;
        f32x16_store((float *)(void *)to, f32x16_load_bf16(values));
        f32x16_store((float *)(void *)to + 16, f32x16_load_bf16(values + 16));
        return to + CHUNK * sizeof(float);
    }
    for (size_t i = 0; i < bytes; i += 64)
        bf16x32_store((bf16 *)(void *)(to + i), bf16x32_load(from + i));
    return to + bytes;
}

/* The chunks of inputs [k_begin, k_end). What a chunk holds of inputs outside is zero. */
static struct stretch copy_rows(void *copy, const struct linear_rows *x, uint32_t k_begin,
                                uint32_t k_end) {
    const size_t bytes = element_bytes(x->dtype), row_bytes = CHUNK * bytes;
    const bool widened = linear_tile_widens(x->dtype, x->count);
    char *to = copy;
    for (uint32_t k = k_begin - k_begin % CHUNK; k < k_end; k += CHUNK) {
        uint32_t begin = k < k_begin ? k_begin : k, end = min_u32(k_end, k + CHUNK);
        for (uint32_t r = 0; r < x->count; r++) {
            _Alignas(64) char cut[CHUNK * sizeof(float)];
            const char *from = chunk_of(x, r, k);
            if (end - begin < CHUNK) {
                memset(cut, 0, row_bytes);
                memcpy(cut + (begin - k) * bytes, from + (begin - k) * bytes,
                       (end - begin) * bytes);
                from = cut;
            }
            to = copy_chunk(to, from, row_bytes, widened);
        }
    }
    return (struct stretch){copy, k_begin, k_end};
}

/* Inputs that are unpacked at once, and the bytes of a panel's weights for them. */
F32X16_INLINE uint32_t inputs_of(const enum linear_format format, const bool narrow) {
    if (format == LINEAR_FP8) return narrow ? 2 : 1;
    return format == LINEAR_INT4 ? 4 : format == LINEAR_BF16 ? 2 : 1;
}
F32X16_INLINE size_t bytes_of(const enum linear_format format, const bool narrow) {
    if (format == LINEAR_FP8) return narrow ? 64 : 32;
    return format == LINEAR_INT4 ? 64 : 128;
}

/* Of what comes in pairs the one that input k is in. */
static struct panel panel_at(const struct linear_weight *weight, bool narrow, size_t idx,
                             uint32_t k) {
    size_t panel_bytes = linear_data_bytes(weight->format, KERNEL_PANEL, weight->k);
    uint32_t data_k = k - k % inputs_of(weight->format, narrow) % 2;
    struct panel panel = {
        .weight = weight,
        .data = (const char *)weight->data + idx * panel_bytes +
                linear_data_bytes(weight->format, KERNEL_PANEL, data_k),
        .scale_end = UINT32_MAX,
    };
    if (weight->format == LINEAR_INT4) {
        size_t group = idx * (weight->k / INT4_GROUP) + k / INT4_GROUP;
        panel.scale = (const bf16 *)weight->scale + group * KERNEL_PANEL;
        panel.scale_end = k - k % INT4_GROUP + INT4_GROUP;
    } else if (weight->format == LINEAR_FP8) {
        uint32_t at = weight->block_begin + k;
        size_t block = idx * linear_fp8_blocks(weight->k) + at / FP8_BLOCK;
        panel.scale = (const float *)weight->scale + block * KERNEL_PANEL;
        panel.scale_end = block_end(weight, k);
    }
    return panel;
}

/* How far ahead weights are asked for, into the second-level cache: a core does not look far enough
 * by itself and would wait for memory at every line. Into the first level costs a row alone a tenth
 * of what it reads. Unpacking INT4 leaves room for few lines under way, so they must be asked for
 * earlier; as early, BF16 is read a third slower. */
F32X16_INLINE size_t ahead_of(const enum linear_format format) {
    return format == LINEAR_INT4 ? 10240 : 3072;
}

/* The weights of inputs that are unpacked at once as pairs: w[2 i], w[2 i + 1] are pair i of the
 * panel. */
F32X16_INLINE void load_pairs(const enum linear_format format, const char *data, bf16x32 w[4]) {
    if (format == LINEAR_INT4) {
        bf16x32_int4((const uint8_t *)data, w);
    } else if (format == LINEAR_FP8) {
        bf16x32_fp8((const uint8_t *)data, w);
    } else {
        w[0] = bf16x32_load(data);
        w[1] = bf16x32_load(data + 64);
    }
}

/* The same as f32: w[2 i], w[2 i + 1] are input i. */
F32X16_INLINE void load_floats(const enum linear_format format, const char *data,
                               const f32x16 scale[2], f32x16 w[8]) {
    if (format == LINEAR_F32) {
        w[0] = f32x16_load((const float *)(const void *)data);
        w[1] = f32x16_load((const float *)(const void *)data + 16);
    } else if (format == LINEAR_FP8) {
        f32x16_panel_fp8((const uint8_t *)data, w);
        w[0] = f32x16_mul(w[0], scale[0]);
        w[1] = f32x16_mul(w[1], scale[1]);
    } else {
        bf16x32 pairs[4];
        load_pairs(format, data, pairs);
        F32X16_UNROLL
        for (uint32_t i = 0; i < inputs_of(format, false); i++) {
            w[2 * i] = i % 2 ? bf16x32_odd(pairs[i - 1]) : bf16x32_even(pairs[i]);
            w[2 * i + 1] = i % 2 ? bf16x32_odd(pairs[i]) : bf16x32_even(pairs[i + 1]);
        }
    }
}

/* FP8 codes come as f32 divided by 256, which the scale makes up for: powers of two round nothing,
 * so that the one rounding is that of value * scale. Pairs are not divided. */
F32X16_INLINE void load_scale(const enum linear_format format, const bool narrow, const void *scale,
                              f32x16 out[2]) {
    if (format == LINEAR_INT4) {
        out[0] = f32x16_load_bf16(scale);
        out[1] = f32x16_load_bf16((const bf16 *)scale + 16);
    } else if (format == LINEAR_FP8) {
        F32X16_UNROLL
        for (uint32_t half = 0; half < 2; half++) {
            out[half] = f32x16_load((const float *)scale + 16 * half);
            if (!narrow) out[half] = f32x16_mul(out[half], f32x16_set1(256.0f));
        }
    }
}

/* The last input of an odd number of FP8 ones, and zeros for the one that it has no pair with. */
struct last_pair {
    _Alignas(64) char codes[2 * KERNEL_PANEL];
};

/* Where pairs of [k, end) end that are in the panel whole. At the one that is not, data is moved.
 */
F32X16_INLINE uint32_t end_before_last(struct last_pair *last, uint32_t weight_k, uint32_t k,
                                       uint32_t end, const char **data) {
    uint32_t whole = weight_k & ~1u;
    if (end <= whole) return end;
    if (k < whole) return whole;
    memcpy(last->codes, *data, KERNEL_PANEL);
    memset(last->codes + KERNEL_PANEL, 0, KERNEL_PANEL);
    *data = last->codes;
    return end;
}

/* acc[r] += the inputs at data times those of the rows at x, which stand a chunk apart. */
F32X16_INLINE void multiply(const enum linear_format format, const bool narrow, const uint32_t rows,
                            const char *data, const f32x16 scale[2], const void *x,
                            f32x16 acc[LINEAR_TILE_ROWS][2]) {
    if (narrow && reads_f32(true, rows)) {
        bf16x32 w[4];
        load_pairs(format, data, w);
        F32X16_UNROLL
        for (uint32_t i = 0; i < inputs_of(format, true); i += 2) {
            f32x16 first[2] = {bf16x32_even(w[i]), bf16x32_even(w[i + 1])};
            f32x16 second[2] = {bf16x32_odd(w[i]), bf16x32_odd(w[i + 1])};
            F32X16_UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                f32x16 value = f32x16_set1(((const float *)x)[r * CHUNK + i + 1]);
                acc[r][0] = f32x16_fma_flushed(value, second[0], acc[r][0]);
                acc[r][1] = f32x16_fma_flushed(value, second[1], acc[r][1]);
                value = f32x16_set1(((const float *)x)[r * CHUNK + i]);
                acc[r][0] = f32x16_fma_flushed(value, first[0], acc[r][0]);
                acc[r][1] = f32x16_fma_flushed(value, first[1], acc[r][1]);
            }
        }
    } else if (narrow) {
        bf16x32 w[4];
        load_pairs(format, data, w);
        F32X16_UNROLL
        for (uint32_t i = 0; i < inputs_of(format, true); i += 2) {
            F32X16_UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                bf16x32 pair = bf16x32_pair((const bf16 *)x + r * CHUNK + i);
                acc[r][0] = f32x16_dot(acc[r][0], pair, w[i]);
                acc[r][1] = f32x16_dot(acc[r][1], pair, w[i + 1]);
            }
        }
    } else {
        f32x16 w[8];
        load_floats(format, data, scale, w);
        F32X16_UNROLL
        for (uint32_t i = 0; i < inputs_of(format, false); i++) {
            F32X16_UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                f32x16 value = f32x16_set1(((const float *)x)[r * CHUNK + i]);
                acc[r][0] = f32x16_fma(value, w[2 * i], acc[r][0]);
                acc[r][1] = f32x16_fma(value, w[2 * i + 1], acc[r][1]);
            }
        }
    }
}

/* One chain over k; where the scale stands outside, one a group or block, and one over those.
 * chunk: the one that k is in. */
F32X16_INLINE void dot(const enum linear_format format, const bool narrow, const uint32_t rows,
                       const struct panel *panel, tile_sums sum, const void *chunk, uint32_t k,
                       uint32_t k_end, bool first) {
    const bool scaled = format == LINEAR_INT4 || format == LINEAR_FP8;
    const bool in_parts = format == LINEAR_INT4 || (format == LINEAR_FP8 && narrow);
    const size_t x_bytes = reads_f32(narrow, rows) ? sizeof(float) : sizeof(bf16);
    const uint32_t inputs = inputs_of(format, narrow);
    const size_t data_bytes = bytes_of(format, narrow);
    const char *data = panel->data, *scales = panel->scale, *x = chunk;
    uint32_t scale_end = panel->scale_end;
    f32x16 total[LINEAR_TILE_ROWS][2], part[LINEAR_TILE_ROWS][2], scale[2];
    f32x16(*acc)[2] = in_parts ? part : total;
    struct last_pair last;
    F32X16_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        total[r][0] = first ? f32x16_zero() : f32x16_load(sum[r]);
        total[r][1] = first ? f32x16_zero() : f32x16_load(sum[r] + 16);
    }
    k -= k % inputs % 2;
    while (k < k_end) {
        if (format == LINEAR_INT4) /* 64 bytes to 512 of data */
            __builtin_prefetch(scales + ahead_of(format) / 8, 0, 2);
        if (scaled) load_scale(format, narrow, scales, scale);
        if (in_parts) {
            F32X16_UNROLL
            for (uint32_t r = 0; r < rows; r++)
                part[r][0] = part[r][1] = f32x16_zero();
        }
        const uint32_t part_end = min_u32(scale_end, k_end);
        while (k < part_end) {
            uint32_t chunk_end = k - k % CHUNK + CHUNK;
            uint32_t end = min_u32(chunk_end, part_end);
            const char *at = x + k % CHUNK * x_bytes;
            if (format == LINEAR_FP8 && narrow)
                end = end_before_last(&last, panel->weight->k, k, end, &data);
            for (; k < end; k += inputs) {
                __builtin_prefetch(data + ahead_of(format), 0, 2);
                if (data_bytes > 64) __builtin_prefetch(data + ahead_of(format) + 64, 0, 2);
                multiply(format, narrow, rows, data, scale, at, acc);
                data += data_bytes;
                at += inputs * x_bytes;
            }
            if (k >= chunk_end) x += rows * CHUNK * x_bytes;
        }
        if (in_parts) {
            F32X16_UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                for (uint32_t half = 0; half < 2; half++)
                    total[r][half] = narrow
                                         ? f32x16_fma_flushed(part[r][half], scale[half],
                                                              total[r][half])
                                         : f32x16_fma(part[r][half], scale[half], total[r][half]);
            }
        }
        if (format == LINEAR_INT4) {
            scales += KERNEL_PANEL * sizeof(bf16);
            scale_end += INT4_GROUP;
        } else if (format == LINEAR_FP8) {
            scales += KERNEL_PANEL * sizeof(float);
            scale_end += FP8_BLOCK;
        }
    }
    F32X16_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        f32x16_store(sum[r], total[r][0]);
        f32x16_store(sum[r] + 16, total[r][1]);
    }
}

#define DOT(format, narrow, rows) dot(format, narrow, rows, panel, sum, chunk, k, k_end, first)
#define CASE(rows)                                                                                 \
    case rows:                                                                                     \
        if (narrow && format == LINEAR_BF16) DOT(LINEAR_BF16, true, rows);                         \
        if (narrow && format == LINEAR_INT4) DOT(LINEAR_INT4, true, rows);                         \
        if (narrow && format == LINEAR_FP8) DOT(LINEAR_FP8, true, rows);                           \
        if (narrow) break;                                                                         \
        if (format == LINEAR_F32) DOT(LINEAR_F32, false, rows);                                    \
        if (format == LINEAR_BF16) DOT(LINEAR_BF16, false, rows);                                  \
        if (format == LINEAR_INT4) DOT(LINEAR_INT4, false, rows);                                  \
        if (format == LINEAR_FP8) DOT(LINEAR_FP8, false, rows);                                    \
        break;

/* Not inlined: nothing of it may leave the stretch in which subnormal numbers are zero. */
__attribute__((noinline)) static void panel_dot(const struct panel *panel, tile_sums sum,
                                                const struct linear_rows *x, const void *chunk,
                                                uint32_t k, uint32_t k_end, bool first) {
    enum linear_format format = panel->weight->format;
    bool narrow = x->dtype == KERNEL_BF16;
    KERNEL_CHECK(linear_activation(format, x->dtype) == x->dtype);
    switch (x->count) {
        LINEAR_TILE_FOR_ROWS(CASE)
    default: KERNEL_CHECK(x->count == 0);
    }
}
