/* A conversation as the JSON that PROMPT_CHAT wants. */
#ifndef ESPALIER_CHAT_REQUEST_H
#define ESPALIER_CHAT_REQUEST_H

#include <stdbool.h>

#include "base/bytes.h"

struct chat_request;

/* thinking: the model may reason before it answers. */
struct chat_request *chat_request_create(bool thinking);
void chat_request_destroy(struct chat_request **request);

/* Both are copied; the content is text and may hold a NUL. */
void chat_request_add(struct chat_request *request, const char *role, struct bytes content);

/* Forget the messages. */
void chat_request_clear(struct chat_request *request);

/* The JSON; the caller frees it. */
char *chat_request_text(const struct chat_request *request);

#endif
