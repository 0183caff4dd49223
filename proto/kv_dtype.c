#include "kv_dtype.h"

#include <string.h>

const char *kv_dtype_name(enum kv_dtype dtype) {
    switch (dtype) {
    case KV_BF16: return "bf16";
    case KV_F32: return "f32";
    case KV_FP8: return "fp8";
    }
    return "";
}

enum kv_dtype kv_dtype_of_name(const char *name) {
    return strcmp(name, "f32") == 0 ? KV_F32 : strcmp(name, "fp8") == 0 ? KV_FP8 : KV_BF16;
}
