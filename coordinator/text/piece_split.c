/* The published pattern, in the syntax of Rust's and Python's regex modules, is eight alternatives
 * tried in order:
 *
 *   [\p{Han}]+
 *   [^\r\n\p{L}\p{N}]? U* W+ C?       U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]
 *   [^\r\n\p{L}\p{N}]? U+ W* C?       W = [\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]
 *   \p{N}{1,3}                        C = (?i:'s|'t|'re|'ve|'m|'ll|'d)
 *   [ ]?[^\s\p{L}\p{N}]+[\r\n]*
 *   \s*[\r\n]+
 *   \s+(?!\S)
 *   \s+
 *
 * PCRE2 says three things differently:
 *
 * - It has no intersection of classes. As the general categories partition all characters, "these
 *   categories and not Han" is "none of the other categories and none of Han": one negated class.
 *   One class also repeats without keeping a frame for every character, which a group with a
 *   lookahead does not; that is what makes a piece of a megabyte safe.
 * - Its \p{Han} means script extensions, which adds the punctuation Han shares with other scripts.
 *   \p{sc:Han} is the script.
 * - Its \s holds U+180E. The white space meant is U+0009-000D, U+0085 and the separators, Z.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/piece_split.h"

#include <pcre2.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/check.h"

#define NOT_LETTER "\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}"
#define UPPER      "[^\\p{Ll}" NOT_LETTER "\\p{sc:Han}]"
#define LOWER      "[^\\p{Lu}\\p{Lt}" NOT_LETTER "\\p{sc:Han}]"
#define PREFIX     "[^\\r\\n\\p{L}\\p{N}]?"
#define SUFFIX     "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define SPACE      "\\t-\\r\\x{85}\\p{Z}"

static const char pattern[] = "\\p{sc:Han}+"
                              "|" PREFIX UPPER "*" LOWER "+" SUFFIX "|" PREFIX UPPER "+" LOWER
                              "*" SUFFIX "|\\p{N}{1,3}"
                              "| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n]*"
                              "|[" SPACE "]*[\\r\\n]+"
                              "|[" SPACE "]+(?![^" SPACE "])"
                              "|[" SPACE "]+";

struct piece_split {
    pcre2_code *code;
    pcre2_match_context *context; /* only read while matching */
};

struct piece_walk {
    const struct piece_split *split;
    pcre2_match_data *match;
    const char *text;
    size_t bytes;
    size_t at;
};

struct piece_split *piece_split_create(void) {
    struct piece_split *split = calloc(1, sizeof *split);
    CHECK(split);
    int error;
    size_t error_offset;
    split->code = pcre2_compile((PCRE2_SPTR)pattern, sizeof pattern - 1,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &error_offset,
                                NULL);
    CHECK(split->code);
    /* Where the library was built without a compiler, the interpreter matches the same. */
    (void)pcre2_jit_compile(split->code, PCRE2_JIT_COMPLETE);

    /* PCRE2's limits guard against patterns that backtrack without end. Ours backtracks over a
     * piece at most twice, so the limits would only refuse long pieces. */
    split->context = pcre2_match_context_create(NULL);
    CHECK(split->context);
    pcre2_set_match_limit(split->context, UINT32_MAX);
    pcre2_set_depth_limit(split->context, UINT32_MAX);
    return split;
}

void piece_split_destroy(struct piece_split *split) {
    if (!split) return;
    pcre2_match_context_free(split->context);
    pcre2_code_free(split->code);
    free(split);
}

struct piece_walk *piece_split_walk_create(const struct piece_split *split, const char *text,
                                           size_t bytes) {
    struct piece_walk *walk = malloc(sizeof *walk);
    CHECK(walk);
    *walk = (struct piece_walk){.split = split, .text = text, .bytes = bytes};
    walk->match = pcre2_match_data_create(1, NULL);
    CHECK(walk->match);
    return walk;
}

void piece_split_walk_destroy(struct piece_walk *walk) {
    if (!walk) return;
    pcre2_match_data_free(walk->match);
    free(walk);
}

enum status piece_split_walk_next(struct piece_walk *walk, size_t *begin_out, size_t *end_out,
                                  struct error *err) {
    *begin_out = *end_out = walk->at;
    if (walk->at == walk->bytes) return STATUS_OK;
    /* Checking UTF-8 on every match would look at the whole rest each time. */
    int result = pcre2_match(walk->split->code, (PCRE2_SPTR)walk->text, walk->bytes, walk->at,
                             PCRE2_NO_UTF_CHECK, walk->match, walk->split->context);
    CHECK(result != PCRE2_ERROR_NOMATCH); /* every character begins some alternative */
    if (result < 0) {
        return error_set(err, STATUS_INTERNAL, "splitting text at byte %zu: PCRE2 error %d",
                         walk->at, result);
    }
    walk->at = pcre2_get_ovector_pointer(walk->match)[1];
    CHECK(walk->at > *begin_out);
    *end_out = walk->at;
    return STATUS_OK;
}
