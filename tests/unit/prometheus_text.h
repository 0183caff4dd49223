/* A strict reader of Prometheus' text format (version 0.0.4), and of the habits `promtool check
 * metrics` asks for. Uses nothing of what it tests. */
#ifndef ESPALIER_PROMETHEUS_TEXT_H
#define ESPALIER_PROMETHEUS_TEXT_H

/* Fails the test at the first line that is wrong: a family opened twice or without help, a sample
 * outside its family, twice, or not a number, a counter whose name does not end in _total, a
 * histogram whose buckets do not ascend to its count. */
void prometheus_text_check(const char *text);

/* The value of the sample that begins with `head` ("name" or "name{labels}"); fails the test where
 * there is none. */
double prometheus_text_value(const char *text, const char *head);

/* Whether `promtool check metrics` finds nothing to say; true too where it is not installed. */
int prometheus_text_promtool_passes(const char *text);

#endif
