/* Kimi's split of text into pieces: words, numbers, marks, white space. Byte-pair merging never
 * crosses a piece's edge, so the split decides the tokens as much as the vocabulary does.
 *
 * A walk over a text gives its pieces in order; they cover it without gaps:
 *
 *   "Hello, world!"   ->  |Hello|,| world|!|
 *   "getUserName"     ->  |get|User|Name|
 *
 * Cost: every byte is looked at a bounded number of times, however long the pieces. A piece_split
 * is immutable and may serve any number of threads; a walk belongs to one.
 */
#ifndef ESPALIER_PIECE_SPLIT_H
#define ESPALIER_PIECE_SPLIT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct piece_split;

struct piece_split *piece_split_create(void);
void piece_split_destroy(struct piece_split *split);

struct piece_walk; /* its functions: piece_split_walk_* */

/* Start over text, which must be valid UTF-8 and outlive the walk. */
struct piece_walk *piece_split_walk_create(const struct piece_split *split, const char *text,
                                           size_t bytes);
void piece_split_walk_destroy(struct piece_walk *walk);

/* The next piece is text[*begin_out, *end_out); at the end of the text both are its length.
 * INTERNAL: the matcher ran out of memory. */
MUST_USE enum status piece_split_walk_next(struct piece_walk *walk, size_t *begin_out,
                                           size_t *end_out, struct error *err);

#endif
