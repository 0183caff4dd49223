/* Byte-pair encoding of one piece: start from single bytes and, as long as two neighbours together
 * are a token, merge the pair whose token has the lowest rank, the leftmost on ties. A piece that
 * is a token itself is that token. (Sennrich, Haddow and Birch, "Neural Machine Translation of Rare
 * Words with Subword Units", 2016; ranks as in the tiktoken file format.)
 */
#ifndef ESPALIER_BPE_H
#define ESPALIER_BPE_H

#include <stddef.h>

#include "base/status.h"
#include "text/token_list.h"
#include "text/vocab.h"

/* Append the tokens of piece[0, bytes), at most `bytes` of them. O(bytes log bytes); long pieces
 * take 28 bytes of memory a byte during the call. RESOURCE_EXHAUSTED: that was refused. Whether all
 * ids fitted is told by ids->full. */
MUST_USE enum status bpe_encode(const struct vocab *vocab, const char *piece, size_t bytes,
                                struct token_list *ids);

#endif
