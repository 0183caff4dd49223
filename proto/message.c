#include "message.h"

#include "base/hash.h"

uint64_t step_state_hash(uint64_t hash, uint32_t slot, uint32_t committed, uint64_t prefix_hash) {
    return hash_chain(hash_chain(hash, (uint64_t)slot << 32 | committed), prefix_hash);
}

const char *activation_dtype_name(enum activation_dtype dtype) {
    switch (dtype) {
    case ACTIVATION_F32: return "f32";
    case ACTIVATION_BF16: return "bf16";
    case ACTIVATION_INT8: return "int8";
    }
    return "";
}

const char *self_test_name(enum self_test rung) {
    switch (rung) {
    case SELF_TEST_NONE: return "";
    case SELF_TEST_ATTENTION: return "attention";
    case SELF_TEST_POOL: return "pool";
    case SELF_TEST_COLLECTIVE: return "collective";
    }
    return "";
}
