/* What the numbers of the KV cache are, as --kv-cache-dtype has it. */
#ifndef ESPALIER_KV_DTYPE_H
#define ESPALIER_KV_DTYPE_H

/* FP8: of the target's latents (kernels/kv_store/kv_store.h); a drafter's cache is then BF16. */
enum kv_dtype { KV_BF16 = 0, KV_F32 = 1, KV_FP8 = 2 };

const char *kv_dtype_name(enum kv_dtype dtype);

/* Of one of the flag's choices. */
enum kv_dtype kv_dtype_of_name(const char *name);

#endif
