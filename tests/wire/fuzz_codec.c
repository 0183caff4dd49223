/* libFuzzer's entry to every decoder: the first byte chooses the type. Needs clang; see
 * ESPALIER_FUZZ in CMakeLists.txt. What is accepted can be read to its end and comes back the same.
 */
#include "base/check.h"
#include "codec_samples.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes == 0) return 0;
    const struct codec_case *codec = &codec_samples_case[data[0] % CODEC_CASE_COUNT];
    struct bytes wire = {.data = data + 1, .size = bytes - 1};
    _Alignas(16) unsigned char first[SAMPLE_MESSAGE_BYTES_MAX], second[sizeof first];
    struct arena arena;
    arena_init(&arena, 3 * codec_arena_budget(wire.size));
    if (codec->decode(wire, &arena, first, NULL) == STATUS_OK) {
        struct bytes copy = codec->encode(first, &arena);
        CHECK(codec->decode(copy, &arena, second, NULL) == STATUS_OK);
        CHECK(codec->same(first, second));
    }
    arena_deinit(&arena);
    return 0;
}
