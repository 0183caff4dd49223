#include "cmd_generate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "chat_request.h"
#include "choice_print.h"
#include "printed.h"
#include "prompt_flags.h"
#include "session.h"

#define PROGRAM_NAME "espalier generate"

struct generation {
    struct generate_request request;
    struct choice_print print;
    bool stats;
    int write_errno; /* why the output cannot be written; 0: it can */
};

static bool on_delta(void *user, const struct generate_delta *delta) {
    struct generation *generation = user;
    /* Whoever reads us may be gone; then nobody wants the rest. */
    if (!choice_print_delta(&generation->print, delta)) generation->write_errno = errno;
    return generation->write_errno == 0;
}

static int generate(void *user, struct client *client) {
    struct generation *generation = user;
    struct generate_summary summary;
    struct error err;
    enum status status = client_generate(client, &generation->request, on_delta, generation,
                                         &summary, &err);
    if (generation->write_errno == 0 && !choice_print_end(&generation->print, status == STATUS_OK))
        generation->write_errno = errno;
    if (generation->write_errno != 0)
        return printed_not(PROGRAM_NAME, EXIT_CODE_FAILED, generation->write_errno);
    if (status != STATUS_OK) return session_failed(PROGRAM_NAME, &err);
    if (generation->stats) prompt_flags_print_stats(&summary);
    return EXIT_CODE_OK;
}

/* All of standard input, at most PROMPT_BYTES_MAX. The caller frees it. */
static enum status read_stdin(char **text_out, size_t *bytes_out, struct error *err) {
    char *text = malloc(PROMPT_BYTES_MAX + 1);
    CHECK(text);
    size_t bytes = fread(text, 1, PROMPT_BYTES_MAX + 1, stdin);
    if (ferror(stdin)) {
        free(text);
        return error_set(err, STATUS_UNAVAILABLE, "PROMPT: standard input: %s", strerror(errno));
    }
    if (bytes > PROMPT_BYTES_MAX) {
        free(text);
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "PROMPT: found more than %u bytes on standard input, accepted: up to that",
                         PROMPT_BYTES_MAX);
    }
    *text_out = text;
    *bytes_out = bytes;
    return STATUS_OK;
}

/* The prompt as the request wants it; *owned_out is to be freed. */
static enum status take_prompt(const char *text, bool chat, struct generate_request *request,
                               char **owned_out, struct error *err) {
    *owned_out = NULL;
    struct bytes prompt = bytes_of_text(text);
    if (strcmp(text, "-") == 0) {
        enum status status = read_stdin(owned_out, &prompt.size, err);
        if (status != STATUS_OK) return status;
        prompt.data = (const uint8_t *)*owned_out;
    }
    if (prompt.size == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "PROMPT: found nothing, accepted: a text");
    request->prompt_kind = chat ? PROMPT_CHAT : PROMPT_TEXT;
    if (chat) {
        struct chat_request *conversation = chat_request_create(false);
        chat_request_add(conversation, "user", prompt);
        char *json = chat_request_text(conversation);
        chat_request_destroy(&conversation);
        free(*owned_out);
        *owned_out = json;
        prompt = bytes_of_text(json);
    }
    request->prompt_text = prompt;
    return STATUS_OK;
}

int cmd_generate(int argc, char *const *argv) {
    struct group_flags group = GROUP_FLAGS_DEFAULT;
    struct session_flags session = {0};
    struct prompt_flags prompt = PROMPT_FLAGS_DEFAULT;
    struct generation generation = {0};
    bool chat = false, print_tokens = false;
    uint32_t choice_count = 1;
    const char *prompt_flag = NULL;
    struct option table[] = {
        {.name = "--prompt",
         .aliases = "-p",
         .type = OPTION_TEXT,
         .value = &prompt_flag,
         .help = "the prompt, instead of the argument"},
        {.name = "--chat",
         .type = OPTION_SWITCH,
         .value = &chat,
         .help = "the prompt is a user's message, to be answered"},
        PROMPT_FLAGS_ROWS(&prompt),
        {.name = "--n",
         .aliases = "--choices",
         .type = OPTION_COUNT,
         .value = &choice_count,
         .min = 1,
         .max = CHOICES_MAX,
         .fallback = "1",
         .help = "so many replies to the prompt, drawn each by itself"},
        {.name = "--print-tokens",
         .type = OPTION_SWITCH,
         .value = &print_tokens,
         .help = "print token ids instead of text"},
        FLAG_RUN_DIR(&session.run_dir),
        SESSION_FLAG_ENDPOINT(&session.endpoint),
        SESSION_FLAG_CURVE_KEYS(&session.curve_keys),
        GROUP_FLAGS_ROWS(&group),
    };
    const struct options_program program = {
        .name = PROGRAM_NAME,
        .usage = "[flags] PROMPT",
        .summary = "Completes PROMPT (`-`: standard input) and streams the text. Flags of a group "
                   "(--tp, --model-path, ...) start one for this call.",
        .option = table,
        .option_count = sizeof table / sizeof *table,
        .positional_name = "PROMPT",
        .positional_max = 1,
    };
    struct options_result result;
    int exit_code;
    if (!options_take(&program, argc, argv, &result, &exit_code)) return exit_code;
    struct error err;
    if ((result.positional_count == 1) == (prompt_flag != NULL)) {
        error_set(&err, STATUS_INVALID_ARGUMENT, "PROMPT: found %s, accepted: exactly one prompt",
                  prompt_flag ? "an argument and --prompt" : "none");
        return options_refuse(PROGRAM_NAME, EXIT_CODE_USAGE, &err);
    }
    char *owned;
    if (prompt_flags_apply(&prompt, &program, &generation.request, &err) != STATUS_OK)
        return options_refuse(PROGRAM_NAME, EXIT_CODE_USAGE, &err);
    generation.request.choice_count = choice_count;
    generation.stats = prompt.stats;
    enum status status = take_prompt(prompt_flag ? prompt_flag : result.positional[0], chat,
                                     &generation.request, &owned, &err);
    choice_print_init(&generation.print, stdout, choice_count, print_tokens);
    exit_code = status == STATUS_OK ? session_run(&program, &session, &group, generate, &generation)
                                    : options_refuse(PROGRAM_NAME, EXIT_CODE_USAGE, &err);
    choice_print_deinit(&generation.print);
    free(owned);
    return exit_code;
}
