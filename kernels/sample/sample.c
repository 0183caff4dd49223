/* The workspace of sample, the same for every instruction set. */
#include "sample/sample.h"

size_t sample_scratch_bytes(uint32_t vocab) {
    return (size_t)vocab * 4 * sizeof(uint32_t); /* ids, weights, digits, places: of a token each */
}
