/* What every op may use besides its arguments, and the rules all ops share.
 *
 * One folder an op: `<op>.h` is the contract (argument struct, shapes, order of sums, tolerance),
 * `<op>_ref.c` the slow and obvious definition, `<op>_cpu.c` the fast one, `<op>_cuda.cu` the
 * GPU's. All variants have the same signature:
 *
 *     void <op>_ref(const struct <op>_args *args, struct kernel_ctx *ctx);
 *
 * Rules. (1) An op is a pure function on arrays: it never allocates, logs, or knows ranks.
 * (2) Exactness: what is computed for a row depends on that row and the weights, to the last bit;
 * never on how many rows there are, on the threads, or on the instruction set. Each header states
 * the order of every sum, and `fma` where a product is fused; nothing else is. (3) Arrays do not
 * overlap unless the header says so. (4) Pointers to f32 are 4-byte aligned; weights 64-byte.
 *
 * Dimension letters (docs/MODEL.md):
 *   T rows in the step   D hidden   H heads on this rank   N nope dim   P rope dim   V value dim
 *   R latent rank        E experts  K experts a row        F expert width on this rank
 */
#ifndef ESPALIER_KERNEL_H
#define ESPALIER_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Outputs are packed and computed in panels of this many. */
#define KERNEL_PANEL 32u

/* Inputs that share one INT4 scale (compressed-tensors, group strategy). */
#define INT4_GROUP 32u

/* Inputs, and outputs, that share one FP8 scale (a square block of the whole tensor). */
#define FP8_BLOCK 128u

/* Fixed segments of a split inner dimension, over all ranks (exactness contract). */
#define KERNEL_SEGMENTS 8u

typedef uint16_t bf16; /* the upper half of an IEEE binary32 */

/* INT8: of activations that meet INT4 weights (linear.h). FP8: of a latent cache (kv_store.h). */
enum kernel_dtype { KERNEL_F32, KERNEL_BF16, KERNEL_INT8, KERNEL_FP8 };

struct kernel_team;

#define WARP_LANES 32u /* threads of a device that run in step */

struct linear_cublaslt;

/* What a launch on a device must know of it. */
struct kernel_device {
    uint32_t multiprocessors;
    size_t shared_bytes_max;          /* a block may ask for: 99 KiB on sm_120, 227 KiB on sm_90 */
    bool has_wgmma;                   /* products of warpgroups (cuda/wgmma.cuh): sm_90 alone */
    struct linear_cublaslt *cublaslt; /* for products of many rows; NULL: by our kernels too */
};

struct kernel_ctx {
    struct kernel_team *team; /* threads to share work with; NULL: the caller alone */
    void *scratch;            /* workspace, 64-byte aligned, contents undefined between ops */
    size_t scratch_bytes;     /* at least what `<op>_scratch_bytes` asks of the op called */
    void *stream;             /* cudaStream_t of the CUDA variants, else NULL */
    const struct kernel_device *device; /* NULL on the CPU */
};

/* An op called against its contract: a bug of the caller. Prints and exits with code 70. */
#define KERNEL_CHECK(condition)                                                                    \
    ((condition) ? (void)0 : kernel_check_failed(#condition, __FILE__, __LINE__))
void kernel_check_failed(const char *expression, const char *file, int line)
    __attribute__((noreturn));

/* "avx512bf16", "avx512", "avx2" or "generic": what the fast variants run on here; for logs and
 * benchmarks. */
const char *kernel_isa_name(void);

static inline uint32_t divide_up(uint32_t a, uint32_t b) {
    return a / b + (a % b != 0);
}

static inline uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static inline uint32_t max_u32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* The next `count` elements of a workspace at `base`, of which *offset bytes are taken; on a cache
 * line of their own. base may be NULL to measure. */
static inline void *kernel_take(void *base, size_t *offset, size_t count, size_t element_bytes) {
    void *out = (void *)((uintptr_t)base + *offset);
    *offset += (count * element_bytes + 63) & ~(size_t)63;
    return out;
}

static inline float bf16_to_f32(bf16 value) {
    union {
        uint32_t bits;
        float value;
    } out = {.bits = (uint32_t)value << 16};
    return out.value;
}

/* An IEEE binary16, widened: exact. */
static inline float f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, digits = half & 0x7fffu;
    union {
        uint32_t bits;
        float value;
    } out = {.bits = digits << 13};
    if (digits >= 0x7c00) /* infinities and NaN */
        out.bits += 224u << 23;
    else if (digits >= 0x0400) /* exponents that begin 112 lower */
        out.bits += 112u << 23;
    else
        out.value = (float)digits * 0x1p-24f;
    out.bits |= sign;
    return out.value;
}

/* A finite e4m3 code: 1.mmm * 2^(e - 7), and 0.mmm * 2^-6 where e is 0. Exact. */
static inline float e4m3_to_f32(uint8_t code) {
    uint32_t digits = code & 0x7fu;
    union {
        uint32_t bits;
        float value;
    } out = {.bits = (digits << 20) + (120u << 23)};
    if (digits < 8) out.value = (float)digits * 0x1p-9f;
    return code & 0x80 ? -out.value : out.value;
}

/* The nearest e4m3 to a number of at most 448, ties to even. */
static inline uint8_t e4m3_from_f32(float value) {
    union {
        float value;
        uint32_t bits;
    } in = {.value = value};
    uint32_t sign = in.bits >> 24 & 0x80u, digits = in.bits & 0x7fffffffu;
    if (digits < 121u << 23) { /* below 2^-6: a multiple of 2^-9, as floats at 2^14 are */
        in.bits = digits;
        in.value += 0x1p14f;
        return (uint8_t)(sign | (in.bits - (141u << 23)));
    }
    uint32_t rounded = (digits + 0x7ffffu + (digits >> 20 & 1u)) >> 20;
    return (uint8_t)(sign | (rounded - (120u << 3)));
}

/* The least bits, without the sign, of what is no finite number. */
#define F32_NOT_FINITE  0x7f800000u
#define BF16_NOT_FINITE 0x7f80u
#define E4M3_NOT_FINITE 0x7fu

/* Round to nearest, ties to even; a NaN stays a NaN. */
static inline bf16 bf16_from_f32(float value) {
    union {
        float value;
        uint32_t bits;
    } in = {.value = value};
    if ((in.bits & 0x7fffffffu) > 0x7f800000u) return (bf16)((in.bits >> 16) | 0x40u);
    return (bf16)((in.bits + 0x7fffu + ((in.bits >> 16) & 1u)) >> 16);
}

#endif
