#include "message.h"

#include "base/hash.h"

uint64_t step_state_hash(uint64_t hash, uint32_t slot, uint32_t committed, uint64_t prefix_hash) {
    return hash_chain(hash_chain(hash, (uint64_t)slot << 32 | committed), prefix_hash);
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
