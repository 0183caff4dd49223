#include "probe_answer.h"

#include <stdio.h>

#define TEXT_BYTES_MAX 1024

/* JSON's string escapes; what is left of the text when `out` is full is dropped. */
static const char *escaped(const char *text, char out[TEXT_BYTES_MAX]) {
    size_t used = 0;
    for (; *text && used + 7 < TEXT_BYTES_MAX; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            used += (size_t)snprintf(out + used, TEXT_BYTES_MAX - used, "\\%c", c);
        else if (c < 0x20)
            used += (size_t)snprintf(out + used, TEXT_BYTES_MAX - used, "\\u%04x", c);
        else
            out[used++] = (char)c;
    }
    out[used] = '\0';
    return out;
}

void probe_answer_fill(struct http_answer *answer, bool ok, const char *state, const char *reason) {
    char quoted[TEXT_BYTES_MAX];
    answer->code = ok ? 200 : 503;
    answer->content_type = "application/json";
    answer->body_bytes = (size_t)snprintf(answer->body, HTTP_ANSWER_BYTES_MAX,
                                          "{\"ok\": %s, \"state\": \"%s\", \"reason\": \"%s\"}\n",
                                          ok ? "true" : "false", state, escaped(reason, quoted));
}

void probe_answer_unknown(struct http_answer *answer, const char *path) {
    char quoted[TEXT_BYTES_MAX];
    answer->code = 404;
    answer->content_type = "application/json";
    answer->body_bytes = (size_t)snprintf(
        answer->body, HTTP_ANSWER_BYTES_MAX,
        "{\"ok\": false, \"state\": \"unknown\", \"reason\": \"%s: accepted: /livez, /readyz, "
        "/startupz, /health, /metrics\"}\n",
        escaped(path, quoted));
}
