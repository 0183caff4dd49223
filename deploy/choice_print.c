#include "choice_print.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

void choice_print_init(struct choice_print *print, FILE *file, uint32_t choice_count, bool tokens) {
    CHECK(choice_count > 0 && choice_count <= CHOICES_MAX);
    *print = (struct choice_print){.file = file, .choice_count = choice_count, .tokens = tokens};
    for (uint32_t i = 1; i < choice_count; i++) {
        print->held[i].stream = open_memstream(&print->held[i].text, &print->held[i].bytes);
        CHECK(print->held[i].stream);
    }
}

void choice_print_deinit(struct choice_print *print) {
    for (uint32_t i = 1; i < print->choice_count; i++) {
        if (print->held[i].stream) fclose(print->held[i].stream);
        free(print->held[i].text);
    }
}

static void put_newline(struct choice_print *print) {
    if (print->ends_in_newline) return;
    putc('\n', print->file);
    print->ends_in_newline = true;
}

static void put_bytes(struct choice_print *print, const void *data, size_t bytes) {
    if (!print->headed && print->choice_count > 1)
        fprintf(print->file, "--- choice %u ---\n", print->shown);
    print->headed = true;
    if (bytes == 0) return;
    fwrite(data, 1, bytes, print->file);
    print->ends_in_newline = ((const char *)data)[bytes - 1] == '\n';
}

/* The shown choice has ended: the next one's turn, and that of those after it that have ended. */
static void show_next(struct choice_print *print) {
    while (print->shown + 1 < print->choice_count && print->held[print->shown].ended) {
        put_bytes(print, "", 0);
        put_newline(print);
        print->shown++;
        print->headed = print->ends_in_newline = false;
        CHECK(fclose(print->held[print->shown].stream) == 0);
        print->held[print->shown].stream = NULL;
        put_bytes(print, print->held[print->shown].text, print->held[print->shown].bytes);
    }
}

static void put_ids(FILE *file, const struct generate_delta *delta) {
    for (uint32_t i = 0; i < delta->token_count; i++)
        fprintf(file, "%u ", delta->token[i]);
}

bool choice_print_delta(struct choice_print *print, const struct generate_delta *delta) {
    uint32_t choice = delta->choice < print->choice_count ? delta->choice : 0;
    bool is_shown = choice == print->shown;
    FILE *file = is_shown ? print->file : print->held[choice].stream;
    if (is_shown && (delta->token_count > 0 || delta->text.size > 0)) put_bytes(print, "", 0);
    if (print->tokens)
        put_ids(file, delta);
    else if (is_shown)
        put_bytes(print, delta->text.data, delta->text.size);
    else
        fwrite(delta->text.data, 1, delta->text.size, file);
    print->held[choice].ended |= delta->finish_reason != FINISH_NONE;
    show_next(print);
    return fflush(print->file) == 0;
}

bool choice_print_end(struct choice_print *print, bool went_well) {
    bool said_something = print->headed || went_well;
    for (uint32_t i = 0; i < print->choice_count; i++) {
        if (i >= print->shown && print->held[i].stream) {
            fflush(print->held[i].stream);
            said_something |= print->held[i].bytes > 0;
        }
        print->held[i].ended = true;
    }
    if (!said_something) return true;
    show_next(print);
    put_newline(print);
    return fflush(print->file) == 0;
}
