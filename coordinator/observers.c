#include "observers.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "codec.h"

#define SERVICE_BYTES_MAX 64u
#define REASON_BYTES_MAX  256u
#define ENCODE_BYTES_MAX  (256u << 10) /* a snapshot of all ranks, with room */
#define DECODE_BYTES_MAX  (64u << 10)  /* our requests hold a number or a short name */

enum kind { KIND_FREE, KIND_WATCH, KIND_HEALTH, KIND_DRAIN };

struct observer {
    enum kind kind;
    struct pool_id call;
    int64_t interval_ns;             /* WATCH */
    int64_t due_ns;                  /* WATCH */
    char service[SERVICE_BYTES_MAX]; /* HEALTH */
    enum health health;              /* HEALTH: what was said last */
    char reason[REASON_BYTES_MAX];
};

struct observers {
    uv_timer_t timer;
    struct rpc_server *server;
    struct core *core;
    struct arena decode_arena, encode_arena;
    struct observer observer[OBSERVERS_MAX];
    uint32_t used; /* entries [0, used) may be in use */
};

static const struct bytes no_body;

static struct observer *add(struct observers *observers, enum kind kind, struct pool_id call) {
    for (uint32_t i = 0; i < OBSERVERS_MAX; i++) {
        struct observer *observer = &observers->observer[i];
        if (observer->kind != KIND_FREE) continue;
        *observer = (struct observer){.kind = kind, .call = call};
        if (i >= observers->used) observers->used = i + 1;
        return observer;
    }
    rpc_end(observers->server, call, STATUS_RESOURCE_EXHAUSTED, "too many watch calls are open",
            no_body);
    return NULL;
}

/* ---- snapshots ----------------------------------------------------------------------------- */

static struct bytes encode_snapshot(struct observers *observers) {
    arena_reset(&observers->encode_arena);
    struct snapshot snapshot = core_snapshot(observers->core, clock_now_ns());
    return codec_encode_snapshot(&snapshot, &observers->encode_arena);
}

static void on_timer(uv_timer_t *timer);

/* Sleep until the first stream is due. */
static void schedule(struct observers *observers) {
    int64_t first_ns = INT64_MAX;
    for (uint32_t i = 0; i < observers->used; i++) {
        const struct observer *observer = &observers->observer[i];
        if (observer->kind == KIND_WATCH && observer->due_ns < first_ns)
            first_ns = observer->due_ns;
    }
    if (first_ns == INT64_MAX) {
        uv_timer_stop(&observers->timer);
        return;
    }
    int64_t wait_ns = first_ns - clock_now_ns();
    uint64_t wait_ms = wait_ns <= 0 ? 0 : (uint64_t)((wait_ns + NS_PER_MS - 1) / NS_PER_MS);
    uv_timer_start(&observers->timer, on_timer, wait_ms, 0);
}

static void on_timer(uv_timer_t *timer) {
    struct observers *observers = timer->data;
    int64_t now_ns = clock_now_ns();
    for (uint32_t i = 0; i < observers->used; i++) {
        struct observer *observer = &observers->observer[i];
        if (observer->kind != KIND_WATCH || observer->due_ns > now_ns) continue;
        observer->due_ns = now_ns + observer->interval_ns;
        rpc_send(observers->server, observer->call, encode_snapshot(observers));
    }
    schedule(observers);
}

static void start_watch(struct observers *observers, struct pool_id call, uint32_t interval_ms) {
    if (interval_ms == 0) {
        rpc_send(observers->server, call, encode_snapshot(observers));
        rpc_end(observers->server, call, STATUS_OK, "", no_body);
        return;
    }
    struct observer *observer = add(observers, KIND_WATCH, call);
    if (!observer) return;
    if (interval_ms < OBSERVERS_INTERVAL_MS_MIN) interval_ms = OBSERVERS_INTERVAL_MS_MIN;
    observer->interval_ns = interval_ms * NS_PER_MS;
    observer->due_ns = clock_now_ns();
    schedule(observers);
}

/* ---- health -------------------------------------------------------------------------------- */

static struct bytes encode_health(struct observers *observers, const struct health_reply *reply) {
    arena_reset(&observers->encode_arena);
    return codec_encode_health_reply(reply, &observers->encode_arena);
}

static void tell_health(struct observers *observers, struct observer *observer, bool first) {
    struct health_reply reply = core_health(observers->core, observer->service, clock_now_ns());
    bool same = reply.health == observer->health &&
                strncmp(reply.reason, observer->reason, REASON_BYTES_MAX - 1) == 0;
    if (same && !first) return;
    observer->health = reply.health;
    strncpy(observer->reason, reply.reason, REASON_BYTES_MAX - 1);
    rpc_send(observers->server, observer->call, encode_health(observers, &reply));
}

void observers_health_changed(struct observers *observers) {
    for (uint32_t i = 0; i < observers->used; i++)
        if (observers->observer[i].kind == KIND_HEALTH)
            tell_health(observers, &observers->observer[i], false);
}

static void check_health(struct observers *observers, struct pool_id call, const char *service) {
    struct health_reply reply = core_health(observers->core, service, clock_now_ns());
    rpc_send(observers->server, call, encode_health(observers, &reply));
    rpc_end(observers->server, call, STATUS_OK, "", no_body);
}

static void start_health_watch(struct observers *observers, struct pool_id call,
                               const char *service) {
    struct observer *observer = add(observers, KIND_HEALTH, call);
    if (!observer) return;
    strncpy(observer->service, service, SERVICE_BYTES_MAX - 1);
    tell_health(observers, observer, true);
}

/* ---- calls --------------------------------------------------------------------------------- */

static enum status serve(struct observers *observers, struct pool_id call, const char *method,
                         struct bytes body, bool *drain_out, struct drain_request *drain,
                         struct error *err) {
    struct arena *arena = &observers->decode_arena;
    arena_reset(arena);
    struct watch_request watch;
    struct health_request health;
    enum status status;
    if (strcmp(method, METHOD_WATCH) == 0) {
        status = codec_decode_watch_request(body, arena, &watch, err);
        if (status == STATUS_OK) start_watch(observers, call, watch.interval_ms);
    } else if (strcmp(method, METHOD_HEALTH_CHECK) == 0) {
        status = codec_decode_health_request(body, arena, &health, err);
        if (status == STATUS_OK) check_health(observers, call, health.service);
    } else if (strcmp(method, METHOD_HEALTH_WATCH) == 0) {
        status = codec_decode_health_request(body, arena, &health, err);
        if (status == STATUS_OK) start_health_watch(observers, call, health.service);
    } else {
        CHECK(strcmp(method, METHOD_DRAIN) == 0);
        status = codec_decode_drain_request(body, arena, drain, err);
        if (status == STATUS_OK) *drain_out = add(observers, KIND_DRAIN, call) != NULL;
    }
    return status;
}

bool observers_call(struct observers *observers, struct pool_id call, const char *method,
                    struct bytes body, struct drain_request *drain_out) {
    struct error err;
    bool drain = false;
    enum status status = serve(observers, call, method, body, &drain, drain_out, &err);
    if (status != STATUS_OK) rpc_end(observers->server, call, status, err.text, no_body);
    return drain;
}

bool observers_cancel(struct observers *observers, struct pool_id call, enum status reason) {
    for (uint32_t i = 0; i < observers->used; i++) {
        struct observer *observer = &observers->observer[i];
        if (observer->kind == KIND_FREE || !pool_id_equal(observer->call, call)) continue;
        observer->kind = KIND_FREE;
        rpc_end(observers->server, call, reason, "", no_body);
        schedule(observers);
        return true;
    }
    return false;
}

void observers_drained(struct observers *observers) {
    for (uint32_t i = 0; i < observers->used; i++) {
        struct observer *observer = &observers->observer[i];
        if (observer->kind != KIND_DRAIN) continue;
        observer->kind = KIND_FREE;
        rpc_end(observers->server, observer->call, STATUS_OK, "", no_body);
    }
}

/* ---- life ---------------------------------------------------------------------------------- */

struct observers *observers_create(uv_loop_t *loop, struct rpc_server *server, struct core *core) {
    struct observers *observers = calloc(1, sizeof *observers);
    CHECK(observers);
    observers->server = server;
    observers->core = core;
    arena_init(&observers->decode_arena, DECODE_BYTES_MAX);
    arena_init(&observers->encode_arena, ENCODE_BYTES_MAX);
    uv_timer_init(loop, &observers->timer);
    observers->timer.data = observers;
    return observers;
}

static void timer_closed(uv_handle_t *handle) {
    struct observers *observers = handle->data;
    arena_deinit(&observers->decode_arena);
    arena_deinit(&observers->encode_arena);
    free(observers);
}

void observers_destroy(struct observers **observers) {
    if (!*observers) return;
    uv_close((uv_handle_t *)&(*observers)->timer, timer_closed);
    *observers = NULL;
}
