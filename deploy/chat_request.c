#include "chat_request.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

struct chat_request {
    struct json_object *root;
    struct json_object *messages; /* of root */
};

struct chat_request *chat_request_create(bool thinking) {
    struct chat_request *request = calloc(1, sizeof *request);
    CHECK(request);
    request->root = json_object_new_object();
    struct json_object *arguments = json_object_new_object();
    json_object_object_add(arguments, "thinking", json_object_new_boolean(thinking));
    json_object_object_add(request->root, "chat_template_kwargs", arguments);
    chat_request_clear(request);
    return request;
}

void chat_request_destroy(struct chat_request **request) {
    json_object_put((*request)->root);
    free(*request);
    *request = NULL;
}

void chat_request_add(struct chat_request *request, const char *role, struct bytes content) {
    struct json_object *message = json_object_new_object();
    json_object_object_add(message, "role", json_object_new_string(role));
    json_object_object_add(
        message, "content",
        json_object_new_string_len((const char *)content.data, (int)content.size));
    json_object_array_add(request->messages, message);
}

void chat_request_clear(struct chat_request *request) {
    request->messages = json_object_new_array();
    json_object_object_add(request->root, "messages", request->messages);
}

char *chat_request_text(const struct chat_request *request) {
    char *text = strdup(json_object_to_json_string_ext(request->root, JSON_C_TO_STRING_PLAIN));
    CHECK(text);
    return text;
}
