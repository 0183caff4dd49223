/* The rules of runtime.proto, read from what it was compiled to and from its text. */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "codec.h"
#include "runtime.pb-c.h"

#define MESSAGES_MAX 64u

static const ProtobufCMessageDescriptor *const roots[] = {
#define X(name, type) &espalier__##name##__descriptor,
    CODEC_TABLE(X)
#undef X
};
#define ROOT_COUNT (sizeof roots / sizeof *roots)

/* --- no message can contain itself ----------------------------------------------------------- */

struct type_set {
    const ProtobufCMessageDescriptor *type[MESSAGES_MAX];
    uint32_t count;
};

static void add(struct type_set *set, const ProtobufCMessageDescriptor *type) {
    for (uint32_t i = 0; i < set->count; i++)
        if (set->type[i] == type) return;
    assert_true(set->count < MESSAGES_MAX);
    set->type[set->count++] = type;
}

/* The types of a message's fields, and of theirs, and so on: it is among them where it can contain
 * itself. */
static void collect_inner(const ProtobufCMessageDescriptor *outer, struct type_set *inner) {
    inner->count = 0;
    const ProtobufCMessageDescriptor *type = outer;
    for (uint32_t next = 0;; type = inner->type[next++]) {
        for (unsigned i = 0; i < type->n_fields; i++)
            if (type->fields[i].type == PROTOBUF_C_TYPE_MESSAGE)
                add(inner, type->fields[i].descriptor);
        if (next == inner->count) return;
    }
}

static bool contains_itself(const ProtobufCMessageDescriptor *type) {
    struct type_set inner;
    collect_inner(type, &inner);
    for (uint32_t i = 0; i < inner.count; i++)
        if (inner.type[i] == type) return true;
    return false;
}

static void all_types(struct type_set *all) {
    all->count = 0;
    for (size_t i = 0; i < ROOT_COUNT; i++) {
        struct type_set inner;
        add(all, roots[i]);
        collect_inner(roots[i], &inner);
        for (uint32_t k = 0; k < inner.count; k++)
            add(all, inner.type[k]);
    }
}

static void no_message_contains_itself(void **state) {
    (void)state;
    struct type_set all;
    all_types(&all);
    assert_true(all.count > ROOT_COUNT);
    for (uint32_t i = 0; i < all.count; i++)
        if (contains_itself(all.type[i])) fail_msg("%s can contain itself", all.type[i]->name);

    /* The same question about a type that does, over another. */
    static ProtobufCMessageDescriptor a, b;
    static const ProtobufCFieldDescriptor to_b = {.type = PROTOBUF_C_TYPE_MESSAGE,
                                                  .descriptor = &b};
    static const ProtobufCFieldDescriptor to_a = {.type = PROTOBUF_C_TYPE_MESSAGE,
                                                  .descriptor = &a};
    a.fields = &to_b, a.n_fields = 1;
    b.fields = &to_a, b.n_fields = 1;
    assert_true(contains_itself(&a));
}

/* --- what fields may be ---------------------------------------------------------------------- */

/* Repeated messages cost a hundred times their length; these have few elements and a count. */
static bool may_repeat(const ProtobufCFieldDescriptor *field) {
    return field->descriptor == &espalier__metadata__descriptor ||
           field->descriptor == &espalier__rank_status__descriptor ||
           field->descriptor == &espalier__choice_summary__descriptor;
}

static void fields_keep_the_rules(void **state) {
    (void)state;
    struct type_set all;
    all_types(&all);
    for (uint32_t i = 0; i < all.count; i++)
        for (unsigned k = 0; k < all.type[i]->n_fields; k++) {
            const ProtobufCFieldDescriptor *field = &all.type[i]->fields[k];
            const char *name = all.type[i]->name;
            bool repeated = field->label == PROTOBUF_C_LABEL_REPEATED;
            bool packed = field->flags & PROTOBUF_C_FIELD_FLAG_PACKED;
            if (field->type == PROTOBUF_C_TYPE_STRING)
                fail_msg("%s.%s is a string", name, field->name);
            if (!repeated) continue;
            if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
                if (!may_repeat(field)) fail_msg("%s.%s repeats a message", name, field->name);
            } else if (field->type != PROTOBUF_C_TYPE_BYTES && !packed) {
                fail_msg("%s.%s is not packed", name, field->name);
            }
        }
}

/* --- the text -------------------------------------------------------------------------------- */

/* runtime.proto with comments as spaces; the caller frees. */
static char *read_schema(void) {
    FILE *file = fopen(ESPALIER_SOURCE_DIR "/proto/runtime.proto", "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    size_t bytes = fread(text, 1, (1 << 20) - 1, file);
    fclose(file);
    assert_true(bytes > 1000);
    for (char *at = text; (at = strstr(at, "//"));)
        while (*at && *at != '\n')
            *at++ = ' ';
    return text;
}

static bool has_word(const char *text, const char *word) {
    size_t length = strlen(word);
    for (const char *at = text; (at = strstr(at, word)); at += length) {
        bool begins = at == text || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
        bool ends = !(isalnum((unsigned char)at[length]) || at[length] == '_');
        if (begins && ends) return true;
    }
    return false;
}

static void schema_uses_only_what_compiles(void **state) {
    (void)state;
    static const char *const banned[] = {"optional", "required", "import", "group",
                                         "map",      "extend",   "Any",    "google"};
    char *text = read_schema();
    assert_true(has_word(text, "proto3"));
    assert_true(has_word(text, "StepPlan"));
    for (size_t i = 0; i < sizeof banned / sizeof *banned; i++)
        if (has_word(text, banned[i])) fail_msg("runtime.proto uses '%s'", banned[i]);
    assert_true(has_word("message M { optional uint32 x = 1; }", "optional"));
    free(text);
}

/* --- enumerations have our numbers ------------------------------------------------------------ */

struct enumerator {
    const ProtobufCEnumDescriptor *type;
    const char *name;
    int value;
};

#define OF(type, name)                                                                             \
    { &espalier__##type##__descriptor, #name, (int)(name) }

static const struct enumerator enumerators[] = {
#define X(name, value) OF(status, STATUS_##name),
    STATUS_TABLE(X)
#undef X
        OF(frame_kind, FRAME_CALL),
    OF(frame_kind, FRAME_DATA),
    OF(frame_kind, FRAME_END),
    OF(frame_kind, FRAME_CANCEL),
    OF(frame_kind, FRAME_WINDOW),
    OF(frame_kind, FRAME_PING),
    OF(frame_kind, FRAME_PONG),
    OF(frame_kind, FRAME_DRAIN),
    OF(frame_kind, FRAME_NOTE),
    OF(prompt_kind, PROMPT_TEXT),
    OF(prompt_kind, PROMPT_TOKENS),
    OF(prompt_kind, PROMPT_CHAT),
    OF(channel, CHANNEL_CONTENT),
    OF(channel, CHANNEL_REASONING),
    OF(channel, CHANNEL_TOOL),
    OF(finish_reason, FINISH_NONE),
    OF(finish_reason, FINISH_STOP),
    OF(finish_reason, FINISH_LENGTH),
    OF(finish_reason, FINISH_CANCELLED),
    OF(finish_reason, FINISH_ERROR),
    OF(rank_state, RANK_ABSENT),
    OF(rank_state, RANK_LOADING),
    OF(rank_state, RANK_LOADED),
    OF(rank_state, RANK_READY),
    OF(rank_state, RANK_LOST),
    OF(health, HEALTH_UNKNOWN),
    OF(health, HEALTH_SERVING),
    OF(health, HEALTH_NOT_SERVING),
    OF(health, HEALTH_SERVICE_UNKNOWN),
    OF(plan_kind, PLAN_CHAIN),
    OF(plan_kind, PLAN_TREE),
    OF(plan_want, PLAN_WANT_NOTHING),
    OF(plan_want, PLAN_WANT_TOKEN),
    OF(kv_dtype, KV_BF16),
    OF(kv_dtype, KV_F32),
    OF(kv_dtype, KV_FP8),
    OF(activation_dtype, ACTIVATION_F32),
    OF(activation_dtype, ACTIVATION_BF16),
    OF(activation_dtype, ACTIVATION_INT8),
    OF(prefill_form, PREFILL_ABSORBED),
    OF(prefill_form, PREFILL_EXPANDED),
    OF(self_test, SELF_TEST_NONE),
    OF(self_test, SELF_TEST_ATTENTION),
    OF(self_test, SELF_TEST_POOL),
    OF(self_test, SELF_TEST_COLLECTIVE),
};
#define ENUMERATOR_COUNT (sizeof enumerators / sizeof *enumerators)

static void enumerations_have_our_numbers(void **state) {
    (void)state;
    for (size_t i = 0; i < ENUMERATOR_COUNT; i++) {
        const struct enumerator *one = &enumerators[i];
        const ProtobufCEnumValue *found = protobuf_c_enum_descriptor_get_value_by_name(one->type,
                                                                                       one->name);
        if (!found || found->value != one->value)
            fail_msg("%s.%s is not %d", one->type->name, one->name, one->value);
        unsigned known = 0;
        for (size_t k = 0; k < ENUMERATOR_COUNT; k++)
            known += enumerators[k].type == one->type;
        const ProtobufCEnumValue *zero = protobuf_c_enum_descriptor_get_value(one->type, 0);
        bool unspecified = zero && strstr(zero->name, "_UNSPECIFIED");
        assert_int_equal(one->type->n_values, known + unspecified);
    }
}

/* A oneof member's number is its type's. */
static void message_types_have_our_numbers(void **state) {
    (void)state;
    static const struct {
        const ProtobufCMessageDescriptor *message;
        const char *member;
        unsigned number;
    } rows[] = {
        {&espalier__worker_message__descriptor, "hello", WORKER_HELLO},
        {&espalier__worker_message__descriptor, "load_progress", WORKER_LOAD_PROGRESS},
        {&espalier__worker_message__descriptor, "loaded", WORKER_LOADED},
        {&espalier__worker_message__descriptor, "group_key", WORKER_GROUP_KEY},
        {&espalier__worker_message__descriptor, "joined", WORKER_JOINED},
        {&espalier__worker_message__descriptor, "heartbeat", WORKER_HEARTBEAT},
        {&espalier__worker_message__descriptor, "step_result", WORKER_STEP_RESULT},
        {&espalier__worker_message__descriptor, "fault", WORKER_FAULT},
        {&espalier__worker_message__descriptor, "resized", WORKER_RESIZED},
        {&espalier__worker_message__descriptor, "sized", WORKER_SIZED},
        {&espalier__worker_message__descriptor, "examined", WORKER_EXAMINED},
        {&espalier__control_message__descriptor, "welcome", CONTROL_WELCOME},
        {&espalier__control_message__descriptor, "refuse", CONTROL_REFUSE},
        {&espalier__control_message__descriptor, "prepare_group", CONTROL_PREPARE_GROUP},
        {&espalier__control_message__descriptor, "form_group", CONTROL_FORM_GROUP},
        {&espalier__control_message__descriptor, "step_plan", CONTROL_STEP_PLAN},
        {&espalier__control_message__descriptor, "end_generation", CONTROL_END_GENERATION},
        {&espalier__control_message__descriptor, "shutdown", CONTROL_SHUTDOWN},
        {&espalier__control_message__descriptor, "resize", CONTROL_RESIZE},
        {&espalier__control_message__descriptor, "size", CONTROL_SIZE},
        {&espalier__control_message__descriptor, "examine", CONTROL_EXAMINE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(
            rows[i].message, rows[i].member);
        if (!field || field->id != rows[i].number)
            fail_msg("%s.%s is not %u", rows[i].message->name, rows[i].member, rows[i].number);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_message_contains_itself),
        cmocka_unit_test(fields_keep_the_rules),
        cmocka_unit_test(schema_uses_only_what_compiles),
        cmocka_unit_test(enumerations_have_our_numbers),
        cmocka_unit_test(message_types_have_our_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
