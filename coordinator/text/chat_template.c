/* Two passes over the messages: one checks them and finds where the past ends, one renders what is
 * then known to be well formed. */
#include "text/chat_template.h"

#include <stdio.h>
#include <string.h>

#include "text/json_tree.h"
#include "text/tool_declaration.h"

#define PATH_BYTES_MAX 96u

/* What a request says, checked. */
struct request {
    struct json_object *messages;
    struct json_object *tools; /* NULL for none */
    bool thinking;
    bool preserve_thinking;
    size_t past_count; /* leading messages whose reasoning is dropped */
};

static enum status read_request(struct json_object *tree, struct request *request,
                                struct error *err);
static enum status check_messages(const struct chat_template *chat, struct request *request,
                                  struct error *err);
static void render_message(const struct chat_template *chat, struct json_object *message,
                           bool keeps_reasoning, struct prompt *prompt);
static void open_message(const struct chat_template *chat, enum chat_mark role, const char *name,
                         struct prompt *prompt);
static void add_mark(const struct chat_template *chat, enum chat_mark mark, struct prompt *prompt);

enum status chat_template_init(struct chat_template *chat, const struct vocab *vocab,
                               bool has_images, struct error *err) {
    static const char *const names[CHAT_MARK_COUNT] = {
#define X(name, text) text,
        CHAT_MARK_TABLE(X)
#undef X
    };
    chat->has_images = has_images;
    for (size_t i = 0; i < CHAT_MARK_COUNT; i++) {
        chat->mark[i] = vocab_special(vocab, names[i]);
        if (chat->mark[i] != VOCAB_NO_ID) continue;
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "the vocabulary has no token %s, which the chat template needs", names[i]);
    }
    return STATUS_OK;
}

enum status chat_template_render(const struct chat_template *chat, const char *text, size_t bytes,
                                 struct prompt *prompt, struct error *err) {
    struct json_object *tree;
    struct request request;
    enum status status = json_tree_parse(text, bytes, &tree, err);
    if (status != STATUS_OK) return status;
    status = read_request(tree, &request, err);
    if (status == STATUS_OK) status = check_messages(chat, &request, err);
    if (status != STATUS_OK) goto out_put;

    if (request.tools) {
        open_message(chat, CHAT_IM_SYSTEM, "tool_declare", prompt);
        status = tool_declaration_append(&prompt->text, request.tools, err);
        if (status != STATUS_OK) goto out_put;
        add_mark(chat, CHAT_IM_END, prompt);
    }
    for (size_t i = 0; i < json_object_array_length(request.messages); i++) {
        bool keeps_reasoning = request.thinking && i >= request.past_count;
        render_message(chat, json_object_array_get_idx(request.messages, i), keeps_reasoning,
                       prompt);
    }
    open_message(chat, CHAT_IM_ASSISTANT, "assistant", prompt);
    add_mark(chat, CHAT_THINK_BEGIN, prompt);
    if (!request.thinking) add_mark(chat, CHAT_THINK_END, prompt);
    if (prompt->text.full) {
        status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "prompt is longer than %zu bytes",
                           prompt->text.bytes_max);
    }
out_put:
    json_object_put(tree);
    return status;
}

static bool is_string(struct json_object *value) {
    return json_object_is_type(value, json_type_string);
}

static bool is_role(struct json_object *message, const char *role) {
    return strcmp(json_object_get_string(json_object_object_get(message, "role")), role) == 0;
}

static bool calls_tools(struct json_object *message) {
    struct json_object *calls = json_object_object_get(message, "tool_calls");
    return calls && json_object_array_length(calls) > 0;
}

/* "messages[2].content: expected string, found number" */
static enum status expected(struct error *err, const char *path, const char *key, const char *what,
                            struct json_object *found) {
    return error_set(err, STATUS_INVALID_ARGUMENT, "%s%s%s: expected %s, found %s", path,
                     *path && *key ? "." : "", key, what, json_tree_kind(found));
}

/* Refuse keys that would be ignored: a misspelt one must not pass for one that was obeyed. */
static enum status check_keys(struct json_object *object, const char *path,
                              const char *const *accepted, struct error *err) {
    json_object_object_foreach(object, key, value) {
        (void)value;
        size_t i = 0;
        while (accepted[i] && strcmp(accepted[i], key) != 0)
            i++;
        if (accepted[i]) continue;
        char list[PATH_BYTES_MAX] = "";
        for (i = 0; accepted[i]; i++)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i > 0 ? ", " : "",
                     accepted[i]);
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: unknown key '%.64s'; accepted are %s",
                         path, key, list);
    }
    return STATUS_OK;
}

static enum status read_flag(struct json_object *kwargs, const char *key, bool *flag,
                             struct error *err) {
    struct json_object *value = json_object_object_get(kwargs, key);
    if (!value) return STATUS_OK;
    if (!json_object_is_type(value, json_type_boolean))
        return expected(err, "chat_template_kwargs", key, "true or false", value);
    *flag = json_object_get_boolean(value);
    return STATUS_OK;
}

static enum status read_kwargs(struct json_object *kwargs, struct request *request,
                               struct error *err) {
    static const char *const accepted[] = {"thinking", "preserve_thinking", NULL};
    if (!kwargs) return STATUS_OK;
    if (!json_object_is_type(kwargs, json_type_object))
        return expected(err, "", "chat_template_kwargs", "object", kwargs);
    enum status status = check_keys(kwargs, "chat_template_kwargs", accepted, err);
    if (status == STATUS_OK) status = read_flag(kwargs, "thinking", &request->thinking, err);
    if (status == STATUS_OK)
        status = read_flag(kwargs, "preserve_thinking", &request->preserve_thinking, err);
    return status;
}

static enum status read_request(struct json_object *tree, struct request *request,
                                struct error *err) {
    static const char *const accepted[] = {"messages", "tools", "chat_template_kwargs", NULL};
    *request = (struct request){.thinking = true};
    if (!json_object_is_type(tree, json_type_object))
        return expected(err, "request", "", "object", tree);
    enum status status = check_keys(tree, "request", accepted, err);
    if (status != STATUS_OK) return status;

    request->messages = json_object_object_get(tree, "messages");
    if (!json_object_is_type(request->messages, json_type_array))
        return expected(err, "", "messages", "array", request->messages);
    if (json_object_array_length(request->messages) == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "messages: expected at least one message");
    struct json_object *tools = json_object_object_get(tree, "tools");
    if (tools && !json_object_is_type(tools, json_type_array))
        return expected(err, "", "tools", "array", tools);
    if (tools && json_object_array_length(tools) > 0) request->tools = tools;
    return read_kwargs(json_object_object_get(tree, "chat_template_kwargs"), request, err);
}

static bool is_image(struct json_object *part) {
    struct json_object *type = json_object_object_get(part, "type");
    const char *text = is_string(type) ? json_object_get_string(type) : "";
    return !strcmp(text, "image") || !strcmp(text, "image_url");
}

static enum status check_part(const struct chat_template *chat, struct json_object *part,
                              const char *path, struct error *err) {
    if (!json_object_is_type(part, json_type_object))
        return expected(err, path, "", "object", part);
    struct json_object *type = json_object_object_get(part, "type");
    if (!is_string(type)) return expected(err, path, "type", "string", type);
    if (is_image(part)) {
        if (chat->has_images) return STATUS_OK;
        return error_set(err, STATUS_UNIMPLEMENTED, "%s: images are not supported, only text",
                         path);
    }
    if (strcmp(json_object_get_string(type), "text") != 0) {
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s.type: expected 'text' or 'image_url', found '%.64s'", path,
                         json_object_get_string(type));
    }
    struct json_object *text = json_object_object_get(part, "text");
    return is_string(text) ? STATUS_OK : expected(err, path, "text", "string", text);
}

static enum status check_content(const struct chat_template *chat, struct json_object *content,
                                 const char *path, struct error *err) {
    if (!content || is_string(content)) return STATUS_OK;
    if (!json_object_is_type(content, json_type_array))
        return expected(err, path, "content", "string or array", content);
    for (size_t i = 0; i < json_object_array_length(content); i++) {
        char part_path[PATH_BYTES_MAX];
        snprintf(part_path, sizeof part_path, "%s.content[%zu]", path, i);
        enum status status = check_part(chat, json_object_array_get_idx(content, i), part_path,
                                        err);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

static enum status check_call(struct json_object *call, const char *path, struct error *err) {
    if (!json_object_is_type(call, json_type_object))
        return expected(err, path, "", "object", call);
    struct json_object *id = json_object_object_get(call, "id");
    if (!is_string(id)) return expected(err, path, "id", "string", id);
    struct json_object *function = json_object_object_get(call, "function");
    if (!json_object_is_type(function, json_type_object))
        return expected(err, path, "function", "object", function);
    struct json_object *arguments = json_object_object_get(function, "arguments");
    if (is_string(arguments) || json_object_is_type(arguments, json_type_object)) return STATUS_OK;
    return expected(err, path, "function.arguments", "string or object", arguments);
}

/* The fields that only assistants' messages have. */
static enum status check_assistant(struct json_object *message, const char *path,
                                   struct error *err) {
    struct json_object *reasoning = json_object_object_get(message, "reasoning_content");
    if (reasoning && !is_string(reasoning))
        return expected(err, path, "reasoning_content", "string", reasoning);
    struct json_object *calls = json_object_object_get(message, "tool_calls");
    if (!calls) return STATUS_OK;
    if (!json_object_is_type(calls, json_type_array))
        return expected(err, path, "tool_calls", "array", calls);
    for (size_t i = 0; i < json_object_array_length(calls); i++) {
        char call_path[PATH_BYTES_MAX];
        snprintf(call_path, sizeof call_path, "%s.tool_calls[%zu]", path, i);
        enum status status = check_call(json_object_array_get_idx(calls, i), call_path, err);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

static enum status check_message(const struct chat_template *chat, struct json_object *message,
                                 const char *path, struct error *err) {
    if (!json_object_is_type(message, json_type_object))
        return expected(err, path, "", "object", message);
    struct json_object *role = json_object_object_get(message, "role");
    struct json_object *name = json_object_object_get(message, "name");
    if (!is_string(role)) return expected(err, path, "role", "string", role);
    if (name && !is_string(name)) return expected(err, path, "name", "string", name);
    enum status status = check_content(chat, json_object_object_get(message, "content"), path, err);
    if (status != STATUS_OK) return status;
    if (is_role(message, "assistant")) return check_assistant(message, path, err);
    struct json_object *call_id = json_object_object_get(message, "tool_call_id");
    if (is_role(message, "tool") && !is_string(call_id))
        return expected(err, path, "tool_call_id", "string", call_id);
    return STATUS_OK;
}

static enum status check_messages(const struct chat_template *chat, struct request *request,
                                  struct error *err) {
    for (size_t i = 0; i < json_object_array_length(request->messages); i++) {
        struct json_object *message = json_object_array_get_idx(request->messages, i);
        char path[PATH_BYTES_MAX];
        snprintf(path, sizeof path, "messages[%zu]", i);
        enum status status = check_message(chat, message, path, err);
        if (status != STATUS_OK) return status;
        bool ends_past = is_role(message, "assistant") && !calls_tools(message);
        if (ends_past && !request->preserve_thinking) request->past_count = i + 1;
    }
    return STATUS_OK;
}

static void add_mark(const struct chat_template *chat, enum chat_mark mark, struct prompt *prompt) {
    prompt_add_special(prompt, chat->mark[mark]);
}

static void add_str(const char *text, struct prompt *prompt) {
    prompt_add_text(prompt, text, strlen(text));
}

/* Add a string; nothing where there is none. */
static void add_string(struct json_object *string, struct prompt *prompt) {
    if (!string) return;
    prompt_add_text(prompt, json_object_get_string(string),
                    (size_t)json_object_get_string_len(string));
}

static void open_message(const struct chat_template *chat, enum chat_mark role, const char *name,
                         struct prompt *prompt) {
    add_mark(chat, role, prompt);
    add_str(name, prompt);
    add_mark(chat, CHAT_IM_MIDDLE, prompt);
}

static void render_image(const struct chat_template *chat, struct prompt *prompt) {
    add_mark(chat, CHAT_MEDIA_BEGIN, prompt);
    add_str("image", prompt);
    add_mark(chat, CHAT_MEDIA_CONTENT, prompt);
    add_mark(chat, CHAT_MEDIA_PAD, prompt);
    add_mark(chat, CHAT_MEDIA_END, prompt);
    add_str("\n", prompt);
}

static void render_content(const struct chat_template *chat, struct json_object *message,
                           struct prompt *prompt) {
    struct json_object *content = json_object_object_get(message, "content");
    if (!json_object_is_type(content, json_type_array)) {
        add_string(content, prompt);
        return;
    }
    for (size_t i = 0; i < json_object_array_length(content); i++) {
        struct json_object *part = json_object_array_get_idx(content, i);
        if (is_image(part))
            render_image(chat, prompt);
        else
            add_string(json_object_object_get(part, "text"), prompt);
    }
}

static void render_calls(const struct chat_template *chat, struct json_object *calls,
                         struct prompt *prompt) {
    add_mark(chat, CHAT_TOOLS_BEGIN, prompt);
    for (size_t i = 0; i < json_object_array_length(calls); i++) {
        struct json_object *call = json_object_array_get_idx(calls, i);
        struct json_object *function = json_object_object_get(call, "function");
        struct json_object *arguments = json_object_object_get(function, "arguments");
        add_mark(chat, CHAT_CALL_BEGIN, prompt);
        add_string(json_object_object_get(call, "id"), prompt);
        add_mark(chat, CHAT_CALL_ARGUMENT, prompt);
        if (is_string(arguments))
            add_string(arguments, prompt);
        else
            json_tree_append(&prompt->text, arguments, JSON_TREE_SPACED);
        add_mark(chat, CHAT_CALL_END, prompt);
    }
    add_mark(chat, CHAT_TOOLS_END, prompt);
}

static void render_message(const struct chat_template *chat, struct json_object *message,
                           bool keeps_reasoning, struct prompt *prompt) {
    bool is_assistant = is_role(message, "assistant");
    struct json_object *name = json_object_object_get(message, "name");
    if (!name || json_object_get_string_len(name) == 0)
        name = json_object_object_get(message, "role");
    enum chat_mark role = is_assistant               ? CHAT_IM_ASSISTANT
                          : is_role(message, "user") ? CHAT_IM_USER
                                                     : CHAT_IM_SYSTEM;
    add_mark(chat, role, prompt);
    add_string(name, prompt);
    add_mark(chat, CHAT_IM_MIDDLE, prompt);
    if (is_assistant) {
        add_mark(chat, CHAT_THINK_BEGIN, prompt);
        if (keeps_reasoning)
            add_string(json_object_object_get(message, "reasoning_content"), prompt);
        add_mark(chat, CHAT_THINK_END, prompt);
    } else if (is_role(message, "tool")) {
        add_str("## Return of ", prompt);
        add_string(json_object_object_get(message, "tool_call_id"), prompt);
        add_str("\n", prompt);
    }
    render_content(chat, message, prompt);
    if (is_assistant && calls_tools(message))
        render_calls(chat, json_object_object_get(message, "tool_calls"), prompt);
    add_mark(chat, CHAT_IM_END, prompt);
}
