/* What worker and coordinator tell each other: one message of one type at a time. */
#include "base/check.h"
#include "codec.h"
#include "codec_examine.h"
#include "codec_step.h"
#include "wire.h"

static Espalier__WorkerHello put_hello(const struct worker_hello *hello);
static Espalier__WorkerFault put_fault(struct arena *arena, const struct worker_fault *fault);
static Espalier__ControlWelcome put_welcome(const struct control_welcome *welcome);
static Espalier__ControlGroup put_group(const struct control_group *group);
static Espalier__ControlResize put_resize(struct arena *arena, const struct control_resize *resize);

static void get_worker(struct wire_reader *reader, const Espalier__WorkerMessage *in,
                       struct worker_message *message);
static struct worker_hello get_hello(struct wire_reader *reader, const Espalier__WorkerHello *in);
static struct worker_fault get_fault(struct wire_reader *reader, const Espalier__WorkerFault *in);
static void get_control(struct wire_reader *reader, const Espalier__ControlMessage *in,
                        struct control_message *message);
static struct control_welcome get_welcome(struct wire_reader *reader,
                                          const Espalier__ControlWelcome *in);
static struct control_group get_group(struct wire_reader *reader, const Espalier__ControlGroup *in,
                                      bool prepare);
static struct control_resize get_resize(struct wire_reader *reader,
                                        const Espalier__ControlResize *in);
static uint64_t get_generation(struct wire_reader *reader, uint64_t generation);
static enum status get_failure(struct wire_reader *reader, Espalier__Status status);

/* The members of the oneofs are numbered as our types. */
_Static_assert((int)WORKER_EXAMINED == (int)ESPALIER__WORKER_MESSAGE__MESSAGE_EXAMINED, "numbers");
_Static_assert((int)CONTROL_EXAMINE == (int)ESPALIER__CONTROL_MESSAGE__MESSAGE_EXAMINE, "numbers");

/* --- worker to coordinator ------------------------------------------------------------------ */

struct bytes codec_encode_worker_message(const struct worker_message *message,
                                         struct arena *arena) {
    Espalier__WorkerMessage out = ESPALIER__WORKER_MESSAGE__INIT;
    Espalier__WorkerHello hello;
    Espalier__WorkerLoadProgress load_progress = ESPALIER__WORKER_LOAD_PROGRESS__INIT;
    Espalier__WorkerLoaded loaded = ESPALIER__WORKER_LOADED__INIT;
    Espalier__WorkerGroupKey group_key = ESPALIER__WORKER_GROUP_KEY__INIT;
    Espalier__WorkerJoined joined = ESPALIER__WORKER_JOINED__INIT;
    Espalier__WorkerHeartbeat heartbeat = ESPALIER__WORKER_HEARTBEAT__INIT;
    Espalier__StepResult step_result = ESPALIER__STEP_RESULT__INIT;
    Espalier__WorkerFault fault;
    Espalier__WorkerResized resized = ESPALIER__WORKER_RESIZED__INIT;
    Espalier__WorkerSized sized = ESPALIER__WORKER_SIZED__INIT;
    Espalier__WorkerExamined examined = ESPALIER__WORKER_EXAMINED__INIT;
    Espalier__ExamineReport report;

    out.message_case = (Espalier__WorkerMessage__MessageCase)message->type;
    switch (message->type) {
    case WORKER_HELLO:
        hello = put_hello(&message->hello);
        out.hello = &hello;
        break;
    case WORKER_LOAD_PROGRESS:
        load_progress.bytes = message->load_progress.bytes;
        load_progress.bytes_total = message->load_progress.bytes_total;
        out.load_progress = &load_progress;
        break;
    case WORKER_LOADED:
        loaded.bytes = message->loaded.bytes;
        loaded.elapsed_ns = message->loaded.elapsed_ns;
        loaded.page_count = message->loaded.page_count;
        loaded.fraction_needed = message->loaded.fraction_needed;
        loaded.free_bytes = message->loaded.free_bytes;
        out.loaded = &loaded;
        break;
    case WORKER_GROUP_KEY:
        group_key.generation = message->group_key.generation;
        group_key.key = wire_put_bytes(message->group_key.key);
        out.group_key = &group_key;
        break;
    case WORKER_JOINED:
        joined.generation = message->joined.generation;
        out.joined = &joined;
        break;
    case WORKER_HEARTBEAT:
        heartbeat.generation = message->heartbeat.generation;
        heartbeat.step = message->heartbeat.step;
        heartbeat.collective_seq = message->heartbeat.collective_seq;
        heartbeat.computing = message->heartbeat.computing;
        heartbeat.collective_ns = message->heartbeat.collective_ns;
        heartbeat.self_test = (Espalier__SelfTest)message->heartbeat.self_test;
        heartbeat.self_test_percent = message->heartbeat.self_test_percent;
        out.heartbeat = &heartbeat;
        break;
    case WORKER_STEP_RESULT:
        codec_step_put_result(arena, &message->step_result, &step_result);
        out.step_result = &step_result;
        break;
    case WORKER_FAULT:
        fault = put_fault(arena, &message->fault);
        out.fault = &fault;
        break;
    case WORKER_RESIZED:
        resized.generation = message->resized.generation;
        resized.number = message->resized.number;
        resized.status = (Espalier__Status)message->resized.status;
        resized.text = wire_put_line(arena, message->resized.text);
        resized.free_bytes = message->resized.free_bytes;
        out.resized = &resized;
        break;
    case WORKER_SIZED:
        sized.generation = message->sized.generation;
        sized.number = message->sized.number;
        sized.page_count = message->sized.page_count;
        sized.fraction_needed = message->sized.fraction_needed;
        out.sized = &sized;
        break;
    case WORKER_EXAMINED:
        report = codec_examine_put_report(&message->examined.report);
        examined.generation = message->examined.generation;
        examined.number = message->examined.number;
        examined.status = (Espalier__Status)message->examined.status;
        examined.text = wire_put_line(arena, message->examined.text);
        examined.report = &report;
        out.examined = &examined;
        break;
    }
    CHECK(out.hello != NULL);
    return wire_pack(arena, &out.base);
}

static Espalier__WorkerHello put_hello(const struct worker_hello *hello) {
    Espalier__WorkerHello out = ESPALIER__WORKER_HELLO__INIT;
    out.wire_version = hello->wire_version;
    out.rank = hello->rank;
    out.tp = hello->tp;
    out.pid = hello->pid;
    out.process_start = hello->process_start;
    out.model_fingerprint = hello->model_fingerprint;
    out.device = wire_put_text(hello->device);
    out.probe = wire_put_text(hello->probe);
    out.draft_fingerprint = hello->draft_fingerprint;
    out.draft_len = hello->draft_len;
    return out;
}

static Espalier__WorkerFault put_fault(struct arena *arena, const struct worker_fault *fault) {
    Espalier__WorkerFault out = ESPALIER__WORKER_FAULT__INIT;
    out.generation = fault->generation;
    out.step = fault->step;
    out.status = (Espalier__Status)fault->status;
    out.text = wire_put_line(arena, fault->text);
    out.fatal = fault->fatal;
    return out;
}

enum status codec_decode_worker_message(struct bytes wire, struct arena *arena,
                                        struct worker_message *message_out, struct error *err) {
    struct wire_reader reader;
    const Espalier__WorkerMessage *in = wire_unpack(&reader, "worker message",
                                                    &espalier__worker_message__descriptor, wire,
                                                    WORKER_BODY_BYTES_MAX, arena, err);
    if (!in) return reader.status;
    get_worker(&reader, in, message_out);
    return reader.status;
}

static void get_worker(struct wire_reader *reader, const Espalier__WorkerMessage *in,
                       struct worker_message *message) {
    *message = (struct worker_message){.type = (enum worker_message_type)in->message_case};
    switch (in->message_case) {
    case ESPALIER__WORKER_MESSAGE__MESSAGE_HELLO:
        message->hello = get_hello(reader, in->hello);
        return;
    case ESPALIER__WORKER_MESSAGE__MESSAGE_LOAD_PROGRESS:
        message->load_progress = (struct worker_load_progress){
            .bytes = in->load_progress->bytes, .bytes_total = in->load_progress->bytes_total};
        return;
    case ESPALIER__WORKER_MESSAGE__MESSAGE_LOADED:
        wire_enter(reader, "loaded", WIRE_NO_INDEX);
        message->loaded = (struct worker_loaded){
            .bytes = in->loaded->bytes,
            .elapsed_ns = in->loaded->elapsed_ns,
            .page_count = wire_u32(reader, "page_count", in->loaded->page_count, 0, KV_PAGES_MAX),
            .fraction_needed = wire_u32(reader, "fraction_needed", in->loaded->fraction_needed, 0,
                                        FRACTION_ONE),
            .free_bytes = in->loaded->free_bytes};
        return;
    case ESPALIER__WORKER_MESSAGE__MESSAGE_GROUP_KEY:
        wire_enter(reader, "group_key", WIRE_NO_INDEX);
        message->group_key = (struct worker_group_key){
            .generation = get_generation(reader, in->group_key->generation),
            .key = wire_bytes(reader, "key", in->group_key->key, 0, GROUP_KEY_BYTES_MAX)};
        return;
    case ESPALIER__WORKER_MESSAGE__MESSAGE_JOINED:
        wire_enter(reader, "joined", WIRE_NO_INDEX);
        message->joined.generation = get_generation(reader, in->joined->generation);
        return;
    case ESPALIER__WORKER_MESSAGE__MESSAGE_HEARTBEAT:
        wire_enter(reader, "heartbeat", WIRE_NO_INDEX);
        message->heartbeat = (struct worker_heartbeat){
            .generation = in->heartbeat->generation,
            .step = in->heartbeat->step,
            .collective_seq = in->heartbeat->collective_seq,
            .computing = in->heartbeat->computing != 0,
            .collective_ns = in->heartbeat->collective_ns,
            .self_test = (enum self_test)wire_enum(reader, "self_test",
                                                   (int)in->heartbeat->self_test, SELF_TEST_NONE,
                                                   SELF_TEST_COLLECTIVE),
            .self_test_percent = wire_u32(reader, "self_test_percent",
                                          in->heartbeat->self_test_percent, 0, 100)};
        return;
    case ESPALIER__WORKER_MESSAGE__MESSAGE_STEP_RESULT:
        codec_step_get_result(reader, in->step_result, &message->step_result);
        return;
    case ESPALIER__WORKER_MESSAGE__MESSAGE_FAULT:
        message->fault = get_fault(reader, in->fault);
        return;
    case ESPALIER__WORKER_MESSAGE__MESSAGE_RESIZED:
        wire_enter(reader, "resized", WIRE_NO_INDEX);
        message->resized = (struct worker_resized){
            .generation = get_generation(reader, in->resized->generation),
            .number = in->resized->number,
            .status = (enum status)wire_enum(reader, "status", (int)in->resized->status, STATUS_OK,
                                             STATUS_COUNT - 1),
            .text = wire_text(reader, "text", in->resized->text, 0, LINE_BYTES_MAX),
            .free_bytes = in->resized->free_bytes};
        return;
    case ESPALIER__WORKER_MESSAGE__MESSAGE_SIZED:
        wire_enter(reader, "sized", WIRE_NO_INDEX);
        message->sized = (struct worker_sized){
            .generation = get_generation(reader, in->sized->generation),
            .number = in->sized->number,
            .page_count = wire_u32(reader, "page_count", in->sized->page_count, 0, KV_PAGES_MAX),
            .fraction_needed = wire_u32(reader, "fraction_needed", in->sized->fraction_needed, 0,
                                        FRACTION_ONE)};
        return;
    case ESPALIER__WORKER_MESSAGE__MESSAGE_EXAMINED:
        wire_enter(reader, "examined", WIRE_NO_INDEX);
        message->examined = (struct worker_examined){
            .generation = get_generation(reader, in->examined->generation),
            .number = in->examined->number,
            .status = (enum status)wire_enum(reader, "status", (int)in->examined->status, STATUS_OK,
                                             STATUS_COUNT - 1),
            .text = wire_text(reader, "text", in->examined->text, 0, LINE_BYTES_MAX),
            .report = codec_examine_get_report(reader, in->examined->report)};
        return;
    default: break;
    }
    wire_refuse(reader, NULL, "of no type, accepted hello..examined of runtime.proto");
}

static struct worker_hello get_hello(struct wire_reader *reader, const Espalier__WorkerHello *in) {
    wire_enter(reader, "hello", WIRE_NO_INDEX);
    uint32_t tp = wire_u32(reader, "tp", in->tp, 1, TP_MAX);
    return (struct worker_hello){
        .wire_version = in->wire_version,
        .rank = wire_u32(reader, "rank", in->rank, 0, tp - 1),
        .tp = tp,
        .pid = wire_u64(reader, "pid", in->pid, 1, UINT64_MAX),
        .process_start = in->process_start,
        .model_fingerprint = in->model_fingerprint,
        .device = wire_text(reader, "device", in->device, 0, NAME_BYTES_MAX),
        .probe = wire_text(reader, "probe", in->probe, 0, NAME_BYTES_MAX),
        .draft_fingerprint = in->draft_fingerprint,
        .draft_len = wire_u32(reader, "draft_len", in->draft_len, in->draft_fingerprint != 0,
                              in->draft_fingerprint != 0 ? DRAFT_LEN_MAX : 0),
    };
}

static struct worker_fault get_fault(struct wire_reader *reader, const Espalier__WorkerFault *in) {
    wire_enter(reader, "fault", WIRE_NO_INDEX);
    return (struct worker_fault){
        .generation = in->generation,
        .step = in->step,
        .status = get_failure(reader, in->status),
        .text = wire_text(reader, "text", in->text, 0, LINE_BYTES_MAX),
        .fatal = in->fatal != 0,
    };
}

/* --- coordinator to worker ------------------------------------------------------------------ */

struct bytes codec_encode_control_message(const struct control_message *message,
                                          struct arena *arena) {
    Espalier__ControlMessage out = ESPALIER__CONTROL_MESSAGE__INIT;
    Espalier__ControlWelcome welcome;
    Espalier__ControlRefuse refuse = ESPALIER__CONTROL_REFUSE__INIT;
    Espalier__ControlGroup group;
    Espalier__StepPlan step_plan = ESPALIER__STEP_PLAN__INIT;
    Espalier__ControlEndGeneration end_generation = ESPALIER__CONTROL_END_GENERATION__INIT;
    Espalier__ControlShutdown shutdown = ESPALIER__CONTROL_SHUTDOWN__INIT;
    Espalier__ControlResize resize;
    Espalier__ControlSize size = ESPALIER__CONTROL_SIZE__INIT;
    Espalier__ControlExamine examine;

    out.message_case = (Espalier__ControlMessage__MessageCase)message->type;
    switch (message->type) {
    case CONTROL_WELCOME:
        welcome = put_welcome(&message->welcome);
        out.welcome = &welcome;
        break;
    case CONTROL_REFUSE:
        refuse.status = (Espalier__Status)message->refuse.status;
        refuse.text = wire_put_line(arena, message->refuse.text);
        out.refuse = &refuse;
        break;
    case CONTROL_PREPARE_GROUP:
        group = put_group(&message->group);
        out.prepare_group = &group;
        break;
    case CONTROL_FORM_GROUP:
        group = put_group(&message->group);
        out.form_group = &group;
        break;
    case CONTROL_STEP_PLAN:
        codec_step_put_plan(arena, &message->step_plan, &step_plan);
        out.step_plan = &step_plan;
        break;
    case CONTROL_END_GENERATION:
        end_generation.generation = message->end_generation.generation;
        end_generation.text = wire_put_line(arena, message->end_generation.text);
        out.end_generation = &end_generation;
        break;
    case CONTROL_SHUTDOWN: out.shutdown = &shutdown; break;
    case CONTROL_RESIZE:
        resize = put_resize(arena, &message->resize);
        out.resize = &resize;
        break;
    case CONTROL_SIZE:
        size.generation = message->size.generation;
        size.number = message->size.number;
        size.mem_fraction = message->size.mem_fraction;
        out.size = &size;
        break;
    case CONTROL_EXAMINE:
        examine = codec_examine_put_order(&message->examine);
        out.examine = &examine;
        break;
    }
    CHECK(out.welcome != NULL);
    return wire_pack(arena, &out.base);
}

static Espalier__ControlWelcome put_welcome(const struct control_welcome *welcome) {
    Espalier__ControlWelcome out = ESPALIER__CONTROL_WELCOME__INIT;
    out.coordinator_pid = welcome->coordinator_pid;
    out.coordinator_start = welcome->coordinator_start;
    out.boot_id = welcome->boot_id;
    out.heartbeat_ms = welcome->heartbeat_ms;
    out.max_rows = welcome->max_rows;
    out.max_sequences = welcome->max_sequences;
    out.page_tok = welcome->page_tok;
    out.page_count = welcome->page_count;
    out.context_len = welcome->context_len;
    out.kv_dtype = (Espalier__KvDtype)welcome->kv_dtype;
    out.page_cap = welcome->page_cap;
    out.mem_fraction = welcome->mem_fraction;
    out.activation_dtype = (Espalier__ActivationDtype)welcome->activation_dtype;
    out.self_test = welcome->self_test;
    out.prefill_form = (Espalier__PrefillForm)welcome->prefill_form;
    return out;
}

static Espalier__ControlGroup put_group(const struct control_group *group) {
    Espalier__ControlGroup out = ESPALIER__CONTROL_GROUP__INIT;
    out.generation = group->generation;
    out.size = group->size;
    out.key = wire_put_bytes(group->key);
    out.page_count = group->page_count;
    return out;
}

static Espalier__ControlResize put_resize(struct arena *arena,
                                          const struct control_resize *resize) {
    Espalier__ControlResize out = ESPALIER__CONTROL_RESIZE__INIT;
    uint32_t count = resize->move_count;
    out.generation = resize->generation;
    out.number = resize->number;
    out.page_count = resize->page_count;
    out.n_move_source = out.n_move_target = count;
    out.move_source = wire_put_alloc(arena, count, sizeof *out.move_source);
    out.move_target = wire_put_alloc(arena, count, sizeof *out.move_target);
    for (uint32_t i = 0; i < count; i++) {
        out.move_source[i] = resize->move[i].source;
        out.move_target[i] = resize->move[i].target;
    }
    return out;
}

enum status codec_decode_control_message(struct bytes wire, struct arena *arena,
                                         struct control_message *message_out, struct error *err) {
    struct wire_reader reader;
    const Espalier__ControlMessage *in = wire_unpack(&reader, "control message",
                                                     &espalier__control_message__descriptor, wire,
                                                     WORKER_BODY_BYTES_MAX, arena, err);
    if (!in) return reader.status;
    get_control(&reader, in, message_out);
    return reader.status;
}

static void get_control(struct wire_reader *reader, const Espalier__ControlMessage *in,
                        struct control_message *message) {
    *message = (struct control_message){.type = (enum control_message_type)in->message_case};
    switch (in->message_case) {
    case ESPALIER__CONTROL_MESSAGE__MESSAGE_WELCOME:
        message->welcome = get_welcome(reader, in->welcome);
        return;
    case ESPALIER__CONTROL_MESSAGE__MESSAGE_REFUSE:
        wire_enter(reader, "refuse", WIRE_NO_INDEX);
        message->refuse = (struct control_refuse){
            .status = get_failure(reader, in->refuse->status),
            .text = wire_text(reader, "text", in->refuse->text, 0, LINE_BYTES_MAX)};
        return;
    case ESPALIER__CONTROL_MESSAGE__MESSAGE_PREPARE_GROUP:
        wire_enter(reader, "prepare_group", WIRE_NO_INDEX);
        message->group = get_group(reader, in->prepare_group, true);
        return;
    case ESPALIER__CONTROL_MESSAGE__MESSAGE_FORM_GROUP:
        wire_enter(reader, "form_group", WIRE_NO_INDEX);
        message->group = get_group(reader, in->form_group, false);
        return;
    case ESPALIER__CONTROL_MESSAGE__MESSAGE_STEP_PLAN:
        codec_step_get_plan(reader, in->step_plan, &message->step_plan);
        return;
    case ESPALIER__CONTROL_MESSAGE__MESSAGE_END_GENERATION:
        wire_enter(reader, "end_generation", WIRE_NO_INDEX);
        message->end_generation = (struct control_end_generation){
            .generation = get_generation(reader, in->end_generation->generation),
            .text = wire_text(reader, "text", in->end_generation->text, 0, LINE_BYTES_MAX)};
        return;
    case ESPALIER__CONTROL_MESSAGE__MESSAGE_SHUTDOWN: return;
    case ESPALIER__CONTROL_MESSAGE__MESSAGE_RESIZE:
        message->resize = get_resize(reader, in->resize);
        return;
    case ESPALIER__CONTROL_MESSAGE__MESSAGE_SIZE:
        wire_enter(reader, "size", WIRE_NO_INDEX);
        message->size = (struct control_size){
            .generation = get_generation(reader, in->size->generation),
            .number = in->size->number,
            .mem_fraction = wire_u32(reader, "mem_fraction", in->size->mem_fraction, 1,
                                     FRACTION_ONE)};
        return;
    case ESPALIER__CONTROL_MESSAGE__MESSAGE_EXAMINE:
        message->examine = codec_examine_get_order(reader, in->examine);
        return;
    default: break;
    }
    wire_refuse(reader, NULL, "of no type, accepted welcome..examine of runtime.proto");
}

static struct control_welcome get_welcome(struct wire_reader *reader,
                                          const Espalier__ControlWelcome *in) {
    wire_enter(reader, "welcome", WIRE_NO_INDEX);
    return (struct control_welcome){
        .coordinator_pid = wire_u64(reader, "coordinator_pid", in->coordinator_pid, 1, UINT64_MAX),
        .coordinator_start = in->coordinator_start,
        .boot_id = in->boot_id,
        .heartbeat_ms = wire_u32(reader, "heartbeat_ms", in->heartbeat_ms, 1, INTERVAL_MS_MAX),
        .max_rows = wire_u32(reader, "max_rows", in->max_rows, 1, PLAN_ROWS_MAX),
        .max_sequences = wire_u32(reader, "max_sequences", in->max_sequences, 1, PLAN_SEQS_MAX),
        .page_tok = wire_u32(reader, "page_tok", in->page_tok, 1, KV_PAGE_TOK_MAX),
        .page_count = wire_u32(reader, "page_count", in->page_count, 1, KV_PAGES_MAX),
        .context_len = wire_u32(reader, "context_len", in->context_len, 1, CONTEXT_TOK_MAX),
        .kv_dtype = (enum kv_dtype)wire_enum(reader, "kv_dtype", (int)in->kv_dtype, KV_BF16,
                                             KV_FP8),
        .page_cap = wire_u32(reader, "page_cap", in->page_cap, in->page_count, KV_PAGES_MAX),
        .mem_fraction = wire_u32(reader, "mem_fraction", in->mem_fraction, 0, FRACTION_ONE),
        .activation_dtype = (enum activation_dtype)wire_enum(
            reader, "activation_dtype", (int)in->activation_dtype, ACTIVATION_F32, ACTIVATION_INT8),
        .prefill_form = (enum prefill_form)wire_enum(reader, "prefill_form", (int)in->prefill_form,
                                                     PREFILL_ABSORBED, PREFILL_EXPANDED),
        .self_test = in->self_test != 0,
    };
}

static struct control_resize get_resize(struct wire_reader *reader,
                                        const Espalier__ControlResize *in) {
    wire_enter(reader, "resize", WIRE_NO_INDEX);
    uint32_t count = wire_count(reader, "move_source", in->n_move_source, 0, RESIZE_MOVES_MAX);
    wire_same_count(reader, "move_target", in->n_move_target, count);
    struct page_move *move = wire_alloc(reader, count, sizeof *move);
    if (!reader->status) {
        wire_each_u32(reader, "move_source", in->move_source, count, KV_PAGES_MAX - 1);
        wire_each_u32(reader, "move_target", in->move_target, count, KV_PAGES_MAX - 1);
        for (uint32_t i = 0; i < count; i++)
            move[i] = (struct page_move){in->move_source[i], in->move_target[i]};
    }
    return (struct control_resize){
        .generation = get_generation(reader, in->generation),
        .number = in->number,
        .page_count = wire_u32(reader, "page_count", in->page_count, 1, KV_PAGES_MAX),
        .move = move,
        .move_count = count,
    };
}

/* One rank alone needs no key, and nobody has one before it is made. */
static struct control_group get_group(struct wire_reader *reader, const Espalier__ControlGroup *in,
                                      bool prepare) {
    uint32_t size = wire_u32(reader, "size", in->size, 1, TP_MAX);
    return (struct control_group){
        .generation = get_generation(reader, in->generation),
        .size = size,
        .key = wire_bytes(reader, "key", in->key, prepare || size == 1 ? 0 : 1,
                          prepare ? 0 : GROUP_KEY_BYTES_MAX),
        .page_count = wire_u32(reader, "page_count", in->page_count, prepare ? 0 : 1,
                               prepare ? 0 : KV_PAGES_MAX),
    };
}

static uint64_t get_generation(struct wire_reader *reader, uint64_t generation) {
    return wire_u64(reader, "generation", generation, 1, UINT64_MAX);
}

static enum status get_failure(struct wire_reader *reader, Espalier__Status status) {
    return (enum status)wire_enum(reader, "status", (int)status, 1, STATUS_COUNT - 1);
}
