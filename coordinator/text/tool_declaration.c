/* A schema is a tree, and its type is written in one walk over it: a stack of frames, one for every
 * array, union or object that is open. What the walk meets on the way and the encoder must know for
 * the lines around the type (named definitions, references to the whole) goes to the writer.
 *
 * "Python writes it so" below is not a courtesy: the form was defined by a Python program. */
#include "text/tool_declaration.h"

#include <string.h>

#include "base/check.h"
#include "text/json_tree.h"

#define INDENT          2u
#define FRAMES_MAX      JSON_TREE_DEPTH_MAX
#define DEFINITIONS_MAX 256u
#define PROPERTIES_MAX  4096u /* of one object: `required` is searched for each */

struct definition {
    const char *name;
    struct json_object *schema;
};

struct writer {
    struct text_buf *out;
    struct definition definition[DEFINITIONS_MAX]; /* $defs met, in order */
    size_t definition_count;
    bool has_self_reference; /* "$ref": "#" was met */
    bool has_no_form;        /* something was met that the encoder gives up on */
};

enum schema_kind {
    SCHEMA_NONE, /* no schema the encoder takes */
    SCHEMA_ANY,
    SCHEMA_NEVER_VALID, /* `false` */
    SCHEMA_REFERENCE,
    SCHEMA_ANY_OF,
    SCHEMA_ENUM,
    SCHEMA_TYPE_LIST,
    SCHEMA_OBJECT,
    SCHEMA_ARRAY,
    SCHEMA_SCALAR,
};

enum stage { STAGE_REQUIRED, STAGE_OPTIONAL, STAGE_ALL, STAGE_EXTRA, STAGE_CLOSE };

/* An open array, union or object. */
struct frame {
    enum schema_kind kind;
    struct json_object *schema;
    size_t indent;
    size_t index;     /* elements written */
    bool is_block;    /* array: its element stands on lines of its own */
    enum stage stage; /* object */
    struct json_object_iterator at, end;
};

static bool write_tools(struct writer *writer, struct json_object *tools);
static void write_function(struct writer *writer, struct json_object *function);

static enum status check_tools(struct json_object *tools, struct error *err) {
    for (size_t i = 0; i < json_object_array_length(tools); i++) {
        struct json_object *tool = json_object_array_get_idx(tools, i);
        if (!json_object_is_type(tool, json_type_object)) {
            return error_set(err, STATUS_INVALID_ARGUMENT, "tools[%zu]: expected object, found %s",
                             i, json_tree_kind(tool));
        }
        struct json_object *type = json_object_object_get(tool, "type");
        if (!json_object_is_type(type, json_type_string)) {
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "tools[%zu].type: expected string, found %s", i, json_tree_kind(type));
        }
        if (strcmp(json_object_get_string(type), "function") != 0) continue;
        struct json_object *function = json_object_object_get(tool, "function");
        if (!json_object_is_type(function, json_type_object)) {
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "tools[%zu].function: expected object, found %s", i,
                             json_tree_kind(function));
        }
        struct json_object *name = json_object_object_get(function, "name");
        if (!json_object_is_type(name, json_type_string)) {
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "tools[%zu].function.name: expected string, found %s", i,
                             json_tree_kind(name));
        }
    }
    return STATUS_OK;
}

enum status tool_declaration_append(struct text_buf *out, struct json_object *tools,
                                    struct error *err) {
    enum status status = check_tools(tools, err);
    if (status != STATUS_OK) return status;
    json_tree_sort_keys(tools);
    struct writer writer = {.out = out};
    size_t begin = out->bytes;
    if (!write_tools(&writer, tools)) {
        text_buf_truncate(out, begin);
        json_tree_append(out, tools, JSON_TREE_COMPACT);
    }
    return STATUS_OK;
}

/* False where there is no TypeScript form of all tools, or none of them is a function. */
static bool write_tools(struct writer *writer, struct json_object *tools) {
    bool has_function = false;
    text_buf_append_str(writer->out, "# Tools\n\n## functions\nnamespace functions {\n");
    for (size_t i = 0; i < json_object_array_length(tools); i++) {
        struct json_object *tool = json_object_array_get_idx(tools, i);
        const char *type = json_object_get_string(json_object_object_get(tool, "type"));
        if (strcmp(type, "function") != 0) continue;
        has_function = true;
        write_function(writer, json_object_object_get(tool, "function"));
        text_buf_append_str(writer->out, "\n");
        if (writer->has_no_form) return false;
    }
    text_buf_append_str(writer->out, "}\n");
    return has_function;
}

/* What Python takes for false. */
static bool is_empty(struct json_object *value) {
    switch (json_object_get_type(value)) {
    case json_type_null: return true;
    case json_type_boolean: return !json_object_get_boolean(value);
    case json_type_double:
    case json_type_int: return json_object_get_double(value) == 0;
    case json_type_string: return json_object_get_string_len(value) == 0;
    case json_type_array: return json_object_array_length(value) == 0;
    case json_type_object: return json_object_object_length(value) == 0;
    }
    return true;
}

static void write_string(struct writer *writer, struct json_object *string) {
    text_buf_append(writer->out, json_object_get_string(string),
                    (size_t)json_object_get_string_len(string));
}

/* A value without inside, as Python's str() writes it. */
static void write_plain(struct writer *writer, struct json_object *value) {
    switch (json_object_get_type(value)) {
    case json_type_null: text_buf_append_str(writer->out, "None"); break;
    case json_type_boolean:
        text_buf_append_str(writer->out, json_object_get_boolean(value) ? "True" : "False");
        break;
    case json_type_double:
    case json_type_int: json_tree_append_number(writer->out, value); break;
    case json_type_string: write_string(writer, value); break;
    case json_type_array:
    case json_type_object: writer->has_no_form = true; break;
    }
}

/* Each line of a description as a comment; an empty line stays empty. */
static void write_description(struct writer *writer, struct json_object *schema, size_t indent) {
    struct json_object *description = json_object_object_get(schema, "description");
    if (is_empty(description)) return;
    if (!json_object_is_type(description, json_type_string)) {
        writer->has_no_form = true;
        return;
    }
    const char *at = json_object_get_string(description);
    const char *text_end = at + json_object_get_string_len(description);
    for (;;) {
        const char *end = memchr(at, '\n', (size_t)(text_end - at));
        if (!end) end = text_end;
        if (end > at) {
            text_buf_append_spaces(writer->out, indent);
            text_buf_append_str(writer->out, "// ");
            text_buf_append(writer->out, at, (size_t)(end - at));
        }
        text_buf_append_str(writer->out, "\n");
        if (end == text_end) return;
        at = end + 1;
    }
}

static bool has_text(struct json_object *value, const char *text) {
    return json_object_is_type(value, json_type_string) &&
           strcmp(json_object_get_string(value), text) == 0;
}

static enum schema_kind kind_of(struct json_object *schema) {
    struct json_object *value;
    if (json_object_is_type(schema, json_type_boolean))
        return json_object_get_boolean(schema) ? SCHEMA_ANY : SCHEMA_NEVER_VALID;
    if (!json_object_is_type(schema, json_type_object)) return SCHEMA_NONE;
    if (json_object_object_get_ex(schema, "$ref", NULL)) return SCHEMA_REFERENCE;
    if (json_object_object_get_ex(schema, "anyOf", NULL)) return SCHEMA_ANY_OF;
    if (json_object_object_get_ex(schema, "enum", NULL)) return SCHEMA_ENUM;
    if (json_object_object_get_ex(schema, "type", &value)) {
        if (json_object_is_type(value, json_type_array)) return SCHEMA_TYPE_LIST;
        if (!json_object_is_type(value, json_type_string)) return SCHEMA_NONE;
        if (has_text(value, "object")) return SCHEMA_OBJECT;
        return has_text(value, "array") ? SCHEMA_ARRAY : SCHEMA_SCALAR;
    }
    return json_object_object_length(schema) == 0 ? SCHEMA_ANY : SCHEMA_NONE;
}

/* The keys whose values are written as constraints of a schema, sorted; NULL ends them. */
static const char *const *constraint_keys(struct json_object *schema) {
    static const char *const of_string[] = {"maxLength", "minLength", "pattern", NULL};
    static const char *const of_number[] = {"maximum", "minimum", NULL};
    static const char *const of_array[] = {"maxItems", "minItems", NULL};
    static const char *const none[] = {NULL};
    enum schema_kind kind = kind_of(schema);
    if (kind == SCHEMA_ARRAY) return of_array;
    if (kind != SCHEMA_SCALAR) return none;
    struct json_object *type = json_object_object_get(schema, "type");
    if (has_text(type, "string")) return of_string;
    return has_text(type, "number") || has_text(type, "integer") ? of_number : none;
}

/* The comment lines above a property or an array's element. */
static void write_comments(struct writer *writer, struct json_object *schema, size_t indent) {
    if (!json_object_is_type(schema, json_type_object)) return;
    write_description(writer, schema, indent);
    bool is_first = true;
    for (const char *const *key = constraint_keys(schema); *key; key++) {
        struct json_object *value;
        if (!json_object_object_get_ex(schema, *key, &value)) continue;
        if (is_first) text_buf_append_spaces(writer->out, indent);
        text_buf_append_str(writer->out, is_first ? "// " : ", ");
        text_buf_append_str(writer->out, *key);
        text_buf_append_str(writer->out, ": ");
        write_plain(writer, value);
        is_first = false;
    }
    if (!is_first) text_buf_append_str(writer->out, "\n");
}

static void write_default(struct writer *writer, struct json_object *schema, size_t indent) {
    struct json_object *value = json_object_object_get(schema, "default");
    if (!json_object_is_type(schema, json_type_object) || !value) return;
    text_buf_append_spaces(writer->out, indent);
    text_buf_append_str(writer->out, "// Default: ");
    if (json_object_is_type(value, json_type_boolean))
        write_plain(writer, value);
    else
        json_tree_append(writer->out, value, JSON_TREE_SPACED);
    text_buf_append_str(writer->out, "\n");
}

static const struct definition *find_definition(const struct writer *writer, const char *name) {
    for (size_t i = 0; i < writer->definition_count; i++)
        if (!strcmp(writer->definition[i].name, name)) return &writer->definition[i];
    return NULL;
}

static void add_definitions(struct writer *writer, struct json_object *schema) {
    struct json_object *definitions = json_object_object_get(schema, "$defs");
    if (is_empty(definitions)) return;
    if (!json_object_is_type(definitions, json_type_object)) {
        writer->has_no_form = true;
        return;
    }
    json_object_object_foreach(definitions, name, definition) {
        struct definition *known = (struct definition *)find_definition(writer, name);
        if (!json_object_is_type(definition, json_type_object) ||
            (!known && writer->definition_count == DEFINITIONS_MAX)) {
            writer->has_no_form = true;
            return;
        }
        if (known)
            known->schema = definition;
        else
            writer->definition[writer->definition_count++] = (struct definition){name, definition};
    }
}

static void write_reference(struct writer *writer, struct json_object *schema) {
    static const char prefix[] = "#/$defs/";
    struct json_object *reference = json_object_object_get(schema, "$ref");
    if (has_text(reference, "#")) {
        writer->has_self_reference = true;
        text_buf_append_str(writer->out, "parameters");
        return;
    }
    const char *text = json_object_get_string(reference);
    if (!json_object_is_type(reference, json_type_string) ||
        strncmp(text, prefix, sizeof prefix - 1) != 0 ||
        !find_definition(writer, strrchr(text, '/') + 1)) {
        writer->has_no_form = true;
        return;
    }
    text_buf_append_str(writer->out, strrchr(text, '/') + 1);
}

/* The one type besides "null" that an enum declares; NULL where it declares none. Gives up on more
 * than one. */
static const char *enum_type(struct writer *writer, struct json_object *schema) {
    struct json_object *type = json_object_object_get(schema, "type");
    if (json_object_is_type(type, json_type_array)) {
        size_t count = json_object_array_length(type);
        struct json_object *first = json_object_array_get_idx(type, 0);
        struct json_object *second = json_object_array_get_idx(type, 1);
        bool has_null = has_text(first, "null") || has_text(second, "null");
        if (count == 0 || count > 2 || (count == 2 && !has_null)) {
            writer->has_no_form = true;
            return NULL;
        }
        type = count == 2 && has_text(first, "null") ? second : first;
    }
    return json_object_is_type(type, json_type_string) ? json_object_get_string(type) : NULL;
}

/* Whether a value is of a type. Other types than these four are not checked. In Python booleans are
 * integers, and integers are numbers. */
static bool is_of_type(struct json_object *value, const char *type) {
    bool is_boolean = json_object_is_type(value, json_type_boolean);
    bool is_integer = is_boolean || json_object_is_type(value, json_type_int);
    if (!strcmp(type, "string")) return json_object_is_type(value, json_type_string);
    if (!strcmp(type, "boolean")) return is_boolean;
    if (!strcmp(type, "integer")) return is_integer;
    if (!strcmp(type, "number")) return is_integer || json_object_is_type(value, json_type_double);
    return true;
}

static void write_enum(struct writer *writer, struct json_object *schema) {
    struct json_object *values = json_object_object_get(schema, "enum");
    if (!json_object_is_type(values, json_type_array)) {
        writer->has_no_form = true;
        return;
    }
    const char *type = enum_type(writer, schema);
    for (size_t i = 0; i < json_object_array_length(values); i++) {
        struct json_object *value = json_object_array_get_idx(values, i);
        if (value && type && !is_of_type(value, type)) writer->has_no_form = true;
        bool is_string = json_object_is_type(value, json_type_string);
        if (i > 0) text_buf_append_str(writer->out, " | ");
        if (is_string) text_buf_append_str(writer->out, "\"");
        write_plain(writer, value);
        if (is_string) text_buf_append_str(writer->out, "\"");
    }
}

static void write_type_list(struct writer *writer, struct json_object *schema) {
    static const struct {
        const char *type, *written;
    } table[] = {
        {"string", "string"}, {"number", "number"}, {"integer", "number"},   {"boolean", "boolean"},
        {"null", "null"},     {"object", "{}"},     {"array", "Array<any>"},
    };
    struct json_object *types = json_object_object_get(schema, "type");
    for (size_t i = 0; i < json_object_array_length(types); i++) {
        struct json_object *type = json_object_array_get_idx(types, i);
        const char *written = NULL;
        for (size_t k = 0; k < sizeof table / sizeof *table; k++)
            if (has_text(type, table[k].type)) written = table[k].written;
        if (!written) {
            writer->has_no_form = true;
            return;
        }
        if (i > 0) text_buf_append_str(writer->out, " | ");
        text_buf_append_str(writer->out, written);
    }
}

/* Start, or start again, over the properties of an object. */
static void rewind_properties(struct frame *frame, enum stage stage) {
    struct json_object *properties = json_object_object_get(frame->schema, "properties");
    frame->stage = properties ? stage : stage == STAGE_ALL ? STAGE_CLOSE : STAGE_EXTRA;
    if (!properties) return;
    frame->at = json_object_iter_begin(properties);
    frame->end = json_object_iter_end(properties);
}

static void open_object(struct writer *writer, struct frame *frame, enum stage stage) {
    struct json_object *properties = json_object_object_get(frame->schema, "properties");
    struct json_object *required = json_object_object_get(frame->schema, "required");
    bool has_properties = json_object_object_get_ex(frame->schema, "properties", NULL);
    if ((has_properties && !json_object_is_type(properties, json_type_object)) ||
        (properties && json_object_object_length(properties) > (int)PROPERTIES_MAX) ||
        (required && !json_object_is_type(required, json_type_array))) {
        writer->has_no_form = true;
        return;
    }
    add_definitions(writer, frame->schema);
    text_buf_append_str(writer->out, "{");
    rewind_properties(frame, stage);
}

static void open_array(struct writer *writer, struct frame *frame) {
    struct json_object *items = json_object_object_get(frame->schema, "items");
    text_buf_append_str(writer->out, "Array<");
    if (is_empty(items)) return;
    size_t before = writer->out->bytes;
    text_buf_append_str(writer->out, "\n");
    size_t begin = writer->out->bytes;
    write_comments(writer, items, frame->indent + INDENT);
    frame->is_block = writer->out->bytes > begin;
    if (frame->is_block)
        text_buf_append_spaces(writer->out, frame->indent + INDENT);
    else
        text_buf_truncate(writer->out, before);
}

/* Write a type that has nothing inside, or open a frame for it. */
static void begin_type(struct writer *writer, struct frame *frames, size_t *depth,
                       struct json_object *schema, size_t indent) {
    enum schema_kind kind = kind_of(schema);
    struct frame *frame = &frames[*depth];
    switch (kind) {
    case SCHEMA_NONE: writer->has_no_form = true; return;
    case SCHEMA_ANY: text_buf_append_str(writer->out, "any"); return;
    case SCHEMA_NEVER_VALID: text_buf_append_str(writer->out, "null"); return;
    case SCHEMA_REFERENCE: write_reference(writer, schema); return;
    case SCHEMA_ENUM: write_enum(writer, schema); return;
    case SCHEMA_TYPE_LIST: write_type_list(writer, schema); return;
    case SCHEMA_SCALAR: {
        struct json_object *type = json_object_object_get(schema, "type");
        if (has_text(type, "integer"))
            text_buf_append_str(writer->out, "number");
        else
            write_string(writer, type);
        return;
    }
    case SCHEMA_ANY_OF:
    case SCHEMA_ARRAY:
    case SCHEMA_OBJECT: break;
    }
    CHECK(*depth < FRAMES_MAX); /* each frame is a level of the parsed JSON */
    *frame = (struct frame){.kind = kind, .schema = schema, .indent = indent};
    ++*depth;
    if (kind == SCHEMA_OBJECT) open_object(writer, frame, STAGE_REQUIRED);
    if (kind == SCHEMA_ARRAY) open_array(writer, frame);
}

static bool is_required(struct json_object *schema, const char *name) {
    struct json_object *required = json_object_object_get(schema, "required");
    size_t count = required ? json_object_array_length(required) : 0;
    for (size_t i = 0; i < count; i++)
        if (has_text(json_object_array_get_idx(required, i), name)) return true;
    return false;
}

/* The next property of the frame's stage; NULL at its end. */
static const char *next_property(struct frame *frame, struct json_object **schema_out,
                                 bool *required_out) {
    while (!json_object_iter_equal(&frame->at, &frame->end)) {
        const char *name = json_object_iter_peek_name(&frame->at);
        *schema_out = json_object_iter_peek_value(&frame->at);
        json_object_iter_next(&frame->at);
        *required_out = is_required(frame->schema, name);
        if (frame->stage == STAGE_ALL || *required_out == (frame->stage == STAGE_REQUIRED))
            return name;
    }
    return NULL;
}

/* Begin a line inside the braces of an object. */
static void begin_line(struct writer *writer, struct frame *frame) {
    text_buf_append_str(writer->out, frame->index++ == 0 ? "\n" : ",\n");
}

/* Write one more property of an object, up to its type, which is then *schema_out. False once the
 * object is closed. */
static bool continue_object(struct writer *writer, struct frame *frame,
                            struct json_object **schema_out) {
    size_t indent = frame->indent + INDENT;
    while (frame->stage < STAGE_EXTRA) {
        bool required;
        const char *name = next_property(frame, schema_out, &required);
        if (name) {
            begin_line(writer, frame);
            write_comments(writer, *schema_out, indent);
            write_default(writer, *schema_out, indent);
            text_buf_append_spaces(writer->out, indent);
            text_buf_append_str(writer->out, name);
            text_buf_append_str(writer->out, required ? ": " : "?: ");
            return true;
        }
        if (frame->stage == STAGE_REQUIRED)
            rewind_properties(frame, STAGE_OPTIONAL);
        else
            frame->stage = frame->stage == STAGE_ALL ? STAGE_CLOSE : STAGE_EXTRA;
    }
    struct json_object *extra = json_object_object_get(frame->schema, "additionalProperties");
    if (frame->stage == STAGE_EXTRA && extra) {
        frame->stage = STAGE_CLOSE;
        begin_line(writer, frame);
        text_buf_append_spaces(writer->out, indent);
        text_buf_append_str(writer->out, "[k: string]: ");
        *schema_out = extra;
        if (!json_object_is_type(extra, json_type_boolean)) return true;
        text_buf_append_str(writer->out, json_object_get_boolean(extra) ? "any" : "never");
    }
    if (frame->index > 0) {
        text_buf_append_str(writer->out, "\n");
        text_buf_append_spaces(writer->out, frame->indent);
    }
    text_buf_append_str(writer->out, "}");
    return false;
}

static bool continue_array(struct writer *writer, struct frame *frame,
                           struct json_object **schema_out) {
    struct json_object *items = json_object_object_get(frame->schema, "items");
    if (frame->index++ == 0 && !is_empty(items)) {
        *schema_out = items;
        return true;
    }
    if (is_empty(items)) text_buf_append_str(writer->out, "any");
    if (frame->is_block) {
        text_buf_append_str(writer->out, "\n");
        text_buf_append_spaces(writer->out, frame->indent);
    }
    text_buf_append_str(writer->out, ">");
    return false;
}

static bool continue_any_of(struct writer *writer, struct frame *frame,
                            struct json_object **schema_out) {
    struct json_object *types = json_object_object_get(frame->schema, "anyOf");
    if (!json_object_is_type(types, json_type_array)) {
        writer->has_no_form = true;
        return false;
    }
    if (frame->index == json_object_array_length(types)) return false;
    if (frame->index > 0) text_buf_append_str(writer->out, " | ");
    *schema_out = json_object_array_get_idx(types, frame->index++);
    return true;
}

/* Go on until every open frame is closed. */
static void write_frames(struct writer *writer, struct frame *frames, size_t depth) {
    while (depth > 0 && !writer->has_no_form) {
        struct frame *frame = &frames[depth - 1];
        struct json_object *inner = NULL;
        size_t indent = frame->indent;
        bool goes_on;
        if (frame->kind == SCHEMA_OBJECT) {
            goes_on = continue_object(writer, frame, &inner);
            indent += INDENT;
        } else if (frame->kind == SCHEMA_ARRAY) {
            goes_on = continue_array(writer, frame, &inner);
            if (frame->is_block) indent += INDENT;
        } else {
            goes_on = continue_any_of(writer, frame, &inner);
        }
        if (goes_on)
            begin_type(writer, frames, &depth, inner, indent);
        else
            depth--;
    }
}

static void write_type(struct writer *writer, struct json_object *schema, size_t indent) {
    struct frame frames[FRAMES_MAX];
    size_t depth = 0;
    begin_type(writer, frames, &depth, schema, indent);
    write_frames(writer, frames, depth);
}

/* The parameters of a function are an object whatever their "type" says. */
static void write_object(struct writer *writer, struct json_object *schema, enum stage stage) {
    struct frame frames[FRAMES_MAX] = {{.kind = SCHEMA_OBJECT, .schema = schema}};
    open_object(writer, &frames[0], stage);
    write_frames(writer, frames, 1);
}

/* The interfaces a function's type refers to: the whole of its parameters, and definitions. */
static void write_interfaces(struct writer *writer, struct json_object *parameters) {
    size_t count = writer->definition_count; /* definitions inside definitions get none */
    if (writer->has_self_reference) {
        text_buf_append_str(writer->out, "interface parameters ");
        write_object(writer, parameters, STAGE_ALL);
        text_buf_append_str(writer->out, "\n");
    }
    for (size_t i = 0; i < count; i++) {
        struct definition definition = writer->definition[i];
        write_description(writer, definition.schema, 0);
        text_buf_append_str(writer->out, "interface ");
        text_buf_append_str(writer->out, definition.name);
        text_buf_append_str(writer->out, " ");
        write_type(writer, definition.schema, 0);
        text_buf_append_str(writer->out, "\n");
    }
}

static void write_function(struct writer *writer, struct json_object *function) {
    struct json_object *parameters = json_object_object_get(function, "parameters");
    struct json_object *nothing = json_object_new_object();
    CHECK(nothing);
    if (is_empty(parameters)) parameters = nothing;
    if (!json_object_is_type(parameters, json_type_object)) {
        writer->has_no_form = true;
        goto out_put;
    }
    /* Which interfaces come before the type is known when it has been written. */
    struct text_buf *out = writer->out, type;
    text_buf_init(&type, out->bytes_max);
    writer->out = &type;
    writer->definition_count = 0;
    writer->has_self_reference = false;
    write_object(writer, parameters, STAGE_REQUIRED);
    writer->out = out;
    if (type.full) out->full = true;

    bool has_self_reference = writer->has_self_reference;
    write_interfaces(writer, parameters);
    write_description(writer, function, 0);
    text_buf_append_str(out, "type ");
    write_string(writer, json_object_object_get(function, "name"));
    text_buf_append_str(out, " = (_: ");
    if (has_self_reference)
        text_buf_append_str(out, "parameters");
    else
        text_buf_append(out, type.data, type.bytes);
    text_buf_append_str(out, ") => any;");
    text_buf_deinit(&type);
out_put:
    json_object_put(nothing);
}
