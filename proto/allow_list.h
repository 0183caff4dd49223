/* Public keys that may connect, from a file that may change while it is in use:
 *
 *     # a comment
 *     Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID  alice
 *
 * A line is a key in Z85; what stands behind it, a name, is for people. Before each answer the file
 * is looked at, and read again where it has changed, so that a key is let in or turned away from
 * the next handshake on. A change that makes no sense, or a file that is gone, is warned of and
 * changes nothing; a file without keys turns everybody away. Who may write the list decides who may
 * connect: a file that others may write is refused.
 *
 * One thread.
 */
#ifndef ESPALIER_ALLOW_LIST_H
#define ESPALIER_ALLOW_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define ALLOW_LIST_KEY_BYTES 32u
#define ALLOW_LIST_KEYS_MAX  4096u

struct allow_list;

/* path is copied. Besides file_open's: PERMISSION_DENIED (others may write it), INVALID_ARGUMENT
 * (a line that is no key, or no key at all: nobody could ever connect). */
enum status allow_list_open(const char *path, struct allow_list **list_out,
                            struct error *err) MUST_USE;
void allow_list_close(struct allow_list **list);

bool allow_list_holds(struct allow_list *list, const uint8_t key[ALLOW_LIST_KEY_BYTES]);

/* Read the file now, changed or not. On an error the keys from before stay. */
enum status allow_list_reread(struct allow_list *list, struct error *err) MUST_USE;

const char *allow_list_path(const struct allow_list *list);
uint32_t allow_list_count(const struct allow_list *list);

#endif
