#include "base/hash.h"

#include <string.h>

uint64_t hash_bytes(const void *data, size_t bytes, uint64_t seed) {
    const unsigned char *at = data;
    uint64_t hash = hash_chain(seed, bytes);
    while (bytes >= sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        hash = hash_chain(hash, word);
        at += sizeof word;
        bytes -= sizeof word;
    }
    uint64_t tail = 0;
    if (bytes > 0) memcpy(&tail, at, bytes);
    return hash_chain(hash, tail);
}
