/* Numbers as Prometheus reads them: the text exposition format, version 0.0.4.
 *
 *     # HELP espalier_requests_running Requests that have a place in the batch.
 *     # TYPE espalier_requests_running gauge
 *     espalier_requests_running{model_name="kimi_k2"} 3
 *
 * A family is opened once and then gets its samples. Nothing is written past `bytes`: what does not
 * fit is left out line by line, and `truncated` says so. Labels are written by the caller as they
 * are to appear between the braces; exposition_quote makes a text fit for one. One thread.
 */
#ifndef ESPALIER_EXPOSITION_H
#define ESPALIER_EXPOSITION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/histogram.h"
#include "http.h"

#define EXPOSITION_LABELS_MAX 256u

struct exposition {
    char *out;
    size_t bytes, used;
    const char *name; /* of the open family */
    bool truncated;
};

/* Write to out[0, bytes), which is a C string after each call. */
void exposition_begin(struct exposition *exposition, char *out, size_t bytes);

/* type: "counter", "gauge" or "histogram"; help: a sentence without line breaks. name and help are
 * borrowed until the next family. */
void exposition_family(struct exposition *exposition, const char *name, const char *type,
                       const char *help);

/* A sample of the open family. labels: "rank=\"0\"", or "" for none. */
void exposition_count(struct exposition *exposition, const char *labels, uint64_t count);
void exposition_value(struct exposition *exposition, const char *labels, double value);
void exposition_seconds(struct exposition *exposition, const char *labels, uint64_t ns);

/* All series of a histogram, in seconds. */
void exposition_histogram(struct exposition *exposition, const char *labels,
                          const struct histogram *histogram);

/* `name="text"` in out, escaped and cut to fit; returns out. */
const char *exposition_quote(const char *name, const char *text, char out[EXPOSITION_LABELS_MAX]);

/* Make what was written the answer to a GET. */
void exposition_answer(const struct exposition *exposition, struct http_answer *answer);

#endif
