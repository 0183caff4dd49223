#include "exposition.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define NS_PER_SECOND 1e9

void exposition_begin(struct exposition *exposition, char *out, size_t bytes) {
    *exposition = (struct exposition){.out = out, .bytes = bytes};
    out[0] = '\0';
}

static void __attribute__((format(printf, 2, 3)))
put_line(struct exposition *exposition, const char *format, ...) {
    va_list arguments;
    size_t room = exposition->bytes - exposition->used;
    va_start(arguments, format);
    int length = vsnprintf(exposition->out + exposition->used, room, format, arguments);
    va_end(arguments);
    if (length >= 0 && (size_t)length < room) {
        exposition->used += (size_t)length;
        return;
    }
    exposition->out[exposition->used] = '\0';
    exposition->truncated = true;
}

void exposition_family(struct exposition *exposition, const char *name, const char *type,
                       const char *help) {
    exposition->name = name;
    put_line(exposition, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* NAME or NAME{labels}, as it begins a sample. */
struct head {
    char text[EXPOSITION_LABELS_MAX + 96];
};

static const char *head_of(const struct exposition *exposition, const char *labels,
                           struct head *head) {
    snprintf(head->text, sizeof head->text, labels[0] ? "%s{%s}" : "%s", exposition->name, labels);
    return head->text;
}

void exposition_count(struct exposition *exposition, const char *labels, uint64_t count) {
    struct head head;
    put_line(exposition, "%s %" PRIu64 "\n", head_of(exposition, labels, &head), count);
}

void exposition_value(struct exposition *exposition, const char *labels, double value) {
    struct head head;
    put_line(exposition, "%s %.9g\n", head_of(exposition, labels, &head), value);
}

void exposition_seconds(struct exposition *exposition, const char *labels, uint64_t ns) {
    exposition_value(exposition, labels, (double)ns / NS_PER_SECOND);
}

void exposition_histogram(struct exposition *exposition, const char *labels,
                          const struct histogram *histogram) {
    const char *name = exposition->name, *comma = labels[0] ? "," : "";
    uint64_t count = 0;
    for (uint32_t idx = 0; idx < HISTOGRAM_BOUNDS; idx++) {
        count += histogram->count[idx];
        put_line(exposition, "%s_bucket{%s%sle=\"%.9g\"} %" PRIu64 "\n", name, labels, comma,
                 (double)histogram_bound_ns(idx) / NS_PER_SECOND, count);
    }
    count += histogram->count[HISTOGRAM_BOUNDS];
    put_line(exposition, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", name, labels, comma, count);
    const char *open = labels[0] ? "{" : "", *close = labels[0] ? "}" : "";
    put_line(exposition, "%s_sum%s%s%s %.9g\n", name, open, labels, close,
             (double)histogram->sum_ns / NS_PER_SECOND);
    put_line(exposition, "%s_count%s%s%s %" PRIu64 "\n", name, open, labels, close, count);
}

const char *exposition_quote(const char *name, const char *text, char out[EXPOSITION_LABELS_MAX]) {
    size_t used = (size_t)snprintf(out, EXPOSITION_LABELS_MAX / 2, "%s=\"", name);
    for (; *text && used + 4 < EXPOSITION_LABELS_MAX; text++) {
        bool is_special = *text == '"' || *text == '\\' || *text == '\n';
        if (is_special) out[used++] = '\\';
        out[used++] = *text;
        if (*text == '\n') out[used - 1] = 'n';
    }
    out[used++] = '"';
    out[used] = '\0';
    return out;
}

void exposition_answer(const struct exposition *exposition, struct http_answer *answer) {
    answer->code = exposition->truncated ? 500 : 200;
    answer->content_type = "text/plain; version=0.0.4; charset=utf-8";
    answer->body_bytes = exposition->used;
}
