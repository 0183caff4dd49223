#include "cmd_chat.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "chat_request.h"
#include "printed.h"
#include "prompt_flags.h"
#include "session.h"

#define PROGRAM_NAME     "espalier chat"
#define ANSWER_BYTES_MAX (1u << 20)

struct conversation {
    struct generate_request request; /* all but the prompt */
    struct chat_request *messages;
    const char *system; /* or NULL */
    bool stats;
    char *answer; /* [ANSWER_BYTES_MAX + 1]: what the model said this turn */
    size_t answer_bytes;
    bool terminal;
    bool in_reasoning; /* what is on the screen now is dimmed */
    int write_errno;   /* why the output cannot be written; 0: it can */
};

static void dim(struct conversation *conversation, bool on) {
    if (conversation->terminal && conversation->in_reasoning != on)
        fputs(on ? "\033[2m" : "\033[0m\n", stdout);
    conversation->in_reasoning = on;
}

static bool on_delta(void *user, const struct generate_delta *delta) {
    struct conversation *conversation = user;
    dim(conversation, delta->channel == CHANNEL_REASONING);
    fwrite(delta->text.data, 1, delta->text.size, stdout);
    if (delta->channel == CHANNEL_CONTENT) {
        size_t room = ANSWER_BYTES_MAX - conversation->answer_bytes;
        if (delta->text.size > room) return false;
        memcpy(conversation->answer + conversation->answer_bytes, delta->text.data,
               delta->text.size);
        conversation->answer_bytes += delta->text.size;
    }
    if (fflush(stdout) != 0) conversation->write_errno = errno;
    return conversation->write_errno == 0;
}

static int answer(struct conversation *conversation, struct client *client, const char *line) {
    chat_request_add(conversation->messages, "user", bytes_of_text(line));
    char *json = chat_request_text(conversation->messages);
    conversation->request.prompt_text = bytes_of_text(json);
    conversation->answer_bytes = 0;
    struct generate_summary summary;
    struct error err;
    enum status status = client_generate(client, &conversation->request, on_delta, conversation,
                                         &summary, &err);
    dim(conversation, false);
    putchar('\n');
    free(json);
    if (conversation->write_errno != 0)
        return printed_not(PROGRAM_NAME, EXIT_CODE_FAILED, conversation->write_errno);
    if (status != STATUS_OK) return session_failed(PROGRAM_NAME, &err);
    conversation->answer[conversation->answer_bytes] = '\0';
    chat_request_add(conversation->messages, "assistant", bytes_of_text(conversation->answer));
    if (conversation->stats) prompt_flags_print_stats(&summary);
    return EXIT_CODE_OK;
}

static void begin(struct conversation *conversation) {
    chat_request_clear(conversation->messages);
    if (conversation->system)
        chat_request_add(conversation->messages, "system", bytes_of_text(conversation->system));
}

static int talk(void *user, struct client *client) {
    struct conversation *conversation = user;
    char *line = NULL;
    size_t capacity = 0;
    int exit_code = EXIT_CODE_OK;
    bool prompt = isatty(STDIN_FILENO);
    if (prompt) fprintf(stderr, "/reset begins anew, /exit or Ctrl-D ends\n");
    begin(conversation);
    while (exit_code == EXIT_CODE_OK) {
        if (prompt) fputs("> ", stderr);
        ssize_t bytes = getline(&line, &capacity, stdin);
        if (bytes < 0) break;
        line[strcspn(line, "\n")] = '\0';
        if (*line == '\0') continue;
        if (strcmp(line, "/exit") == 0) break;
        if (strcmp(line, "/reset") == 0)
            begin(conversation);
        else
            exit_code = answer(conversation, client, line);
    }
    free(line);
    return exit_code;
}

int cmd_chat(int argc, char *const *argv) {
    struct group_flags group = GROUP_FLAGS_DEFAULT;
    struct session_flags session = {0};
    struct prompt_flags prompt = PROMPT_FLAGS_DEFAULT;
    struct conversation conversation = {.terminal = isatty(STDOUT_FILENO)};
    bool thinking = false;
    struct option table[] = {
        {.name = "--system",
         .type = OPTION_TEXT,
         .value = &conversation.system,
         .help = "a system message before the conversation"},
        {.name = "--thinking",
         .type = OPTION_SWITCH,
         .value = &thinking,
         .help = "let the model reason before it answers"},
        PROMPT_FLAGS_ROWS(&prompt),
        FLAG_RUN_DIR(&session.run_dir),
        SESSION_FLAG_ENDPOINT(&session.endpoint),
        SESSION_FLAG_CURVE_KEYS(&session.curve_keys),
        GROUP_FLAGS_ROWS(&group),
    };
    const struct options_program program = {
        .name = PROGRAM_NAME,
        .usage = "[flags]",
        .summary = "Talks to the model, a line a turn. Flags of a group (--tp, --model-path, ...) "
                   "start one for this conversation.",
        .option = table,
        .option_count = sizeof table / sizeof *table,
    };
    struct options_result result;
    int exit_code;
    if (!options_take(&program, argc, argv, &result, &exit_code)) return exit_code;
    conversation.stats = prompt.stats;
    conversation.request.prompt_kind = PROMPT_CHAT;
    struct error err;
    if (prompt_flags_apply(&prompt, &program, &conversation.request, &err) != STATUS_OK)
        return options_refuse(PROGRAM_NAME, EXIT_CODE_USAGE, &err);
    conversation.messages = chat_request_create(thinking);
    conversation.answer = malloc(ANSWER_BYTES_MAX + 1);
    CHECK(conversation.answer);
    exit_code = session_run(&program, &session, &group, talk, &conversation);
    chat_request_destroy(&conversation.messages);
    free(conversation.answer);
    return exit_code;
}
