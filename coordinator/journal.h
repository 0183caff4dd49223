/* What happened to a core, in a file: its options, every event given to core_step, and a hash of
 * the effects that came of it. The core is a function, so the same events through the same core
 * give the same effects: a journal of a night in production replays on a desk
 * (`sim --replay FILE`).
 *
 *   file     "ESPJRNL1", then records
 *   record   payload bytes u32 | check u32 | payload      little-endian, as the machine
 *   payload  kind u64, then of kind
 *              OPTIONS  numbers, model's path
 *              EVENT    type, time and up to four numbers, body (the codec's bytes where it has
 *                       a message for them)
 *              EFFECTS  the hash of what the event before came to
 *
 * An event is written before the core takes it, so the one that breaks an invariant is in the
 * file. One write(2) an event, no memory after journal_open. A journal that cannot be written any
 * more (the disk is full, JOURNAL_BYTES_MAX is reached) warns once and is silent from then on;
 * serving goes on. A record cut off at the end of the file is where a reader stops.
 */
#ifndef ESPALIER_JOURNAL_H
#define ESPALIER_JOURNAL_H

#include "core.h"

#define JOURNAL_BYTES_MAX (UINT64_C(1) << 30)

struct journal;

/* Start a file; one that is there is replaced. INVALID_ARGUMENT: it cannot be written. */
enum status journal_create(const char *path, struct journal **journal_out,
                           struct error *err) MUST_USE;
void journal_close(struct journal **journal);

/* First of all, once for each core. model_path: where its vocabulary lies. */
void journal_options(struct journal *journal, const struct core_options *options,
                     const char *model_path);
void journal_event(struct journal *journal, const struct event *event);
void journal_effects(struct journal *journal, struct effects effects);

/* --- reading ---------------------------------------------------------------------------------- */

struct journal_reader;

enum journal_kind { JOURNAL_END, JOURNAL_OPTIONS, JOURNAL_EVENT, JOURNAL_EFFECTS };

/* What a record holds; all pointers live until the next read. */
struct journal_record {
    enum journal_kind kind;
    struct core_options options; /* OPTIONS: its vocab is NULL */
    const char *model_path;      /* OPTIONS */
    struct event event;          /* EVENT */
    uint64_t effects_hash;       /* EFFECTS */
};

/* INVALID_ARGUMENT: not a journal. */
enum status journal_reader_open(const char *path, struct journal_reader **reader_out,
                                struct error *err) MUST_USE;
void journal_reader_close(struct journal_reader **reader);

/* kind END: no more whole records. DATA_LOSS: a whole record that is damaged. */
enum status journal_reader_next(struct journal_reader *reader, struct journal_record *record_out,
                                struct error *err) MUST_USE;

/* What journal_effects would write. */
uint64_t journal_reader_hash(struct journal_reader *reader, struct effects effects);

#endif
