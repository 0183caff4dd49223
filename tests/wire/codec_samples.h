/* Random valid messages of every type, and equality of messages: what the codec's tests share.
 *
 * Everything follows from the seed. Numbers are often at the ends of their ranges, tables often
 * empty and sometimes full, text holds characters of every length. Written from the bounds that
 * runtime.proto states; shares no code with the codec.
 */
#ifndef ESPALIER_CODEC_SAMPLES_H
#define ESPALIER_CODEC_SAMPLES_H

#include "base/arena.h"
#include "codec.h"

struct sample_source {
    uint64_t state;
    struct arena *arena; /* of what samples point to */
    uint32_t big_one_in; /* one plan or result in so many is as large as one may be; 0: none */
};

/* In [min, max]. */
uint64_t sample_number(struct sample_source *source, uint64_t min, uint64_t max);

#define X(name, type)                                                                              \
    void sample_##name(struct sample_source *source, type *message);                               \
    bool same_##name(const type *a, const type *b);
CODEC_TABLE(X)
#undef X

/* The same functions by index, for tests that treat all types alike. */
#define SAMPLE_MESSAGE_BYTES_MAX 512u

struct codec_case {
    const char *name;
    void (*sample)(struct sample_source *source, void *message);
    bool (*same)(const void *a, const void *b);
    struct bytes (*encode)(const void *message, struct arena *arena);
    enum status (*decode)(struct bytes wire, struct arena *arena, void *message, struct error *err);
};

#define CODEC_CASE_COUNT 16u
extern const struct codec_case codec_samples_case[CODEC_CASE_COUNT];

#endif
