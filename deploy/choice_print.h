/* Replies on a terminal, where there may be several to one prompt: the first is shown as it comes,
 * the others are held and follow it whole, in their order, each under a line that says which it is.
 * A single reply has no such line.
 */
#ifndef ESPALIER_CHOICE_PRINT_H
#define ESPALIER_CHOICE_PRINT_H

#include <stdbool.h>
#include <stdio.h>

#include "message.h"

struct choice_print {
    FILE *file;
    uint32_t choice_count; /* at least 1 */
    bool tokens;           /* ids instead of text */
    uint32_t shown;        /* the choice that is shown as it comes */
    bool headed, ends_in_newline;
    struct {
        FILE *stream;
        char *text;
        size_t bytes;
        bool ended;
    } held[CHOICES_MAX];
};

/* CHECKs that there is memory. */
void choice_print_init(struct choice_print *print, FILE *file, uint32_t choice_count, bool tokens);
void choice_print_deinit(struct choice_print *print);

/* False: the file cannot be written; errno says why. */
bool choice_print_delta(struct choice_print *print, const struct generate_delta *delta);

/* The call has ended: what is still held, and a last line's end. Nothing where nothing came, unless
 * the call went well. */
bool choice_print_end(struct choice_print *print, bool went_well);

#endif
