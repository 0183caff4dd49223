#include "keyring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "curve_keys.h"

#define PATH_BYTES_MAX 4096u
#define DOORS          2u

static const struct {
    const char *domain, *file;
} doors[DOORS] = {
    [KEYRING_CLIENTS] = {"clients", CURVE_CLIENTS_ALLOWED},
    [KEYRING_WORKERS] = {"workers", CURVE_WORKERS_ALLOWED},
};

struct keyring {
    struct curve_pair own;
    struct allow_list *list[DOORS];
    struct zap *zap;
};

static enum status open_lists(struct keyring *keyring, const char *dir, struct error *err) {
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < DOORS && status == STATUS_OK; i++) {
        char path[PATH_BYTES_MAX];
        snprintf(path, sizeof path, "%s/%s", dir, doors[i].file);
        status = allow_list_open(path, &keyring->list[i], err);
    }
    return status;
}

enum status keyring_open(uv_loop_t *loop, void *zmq_context, const char *dir,
                         struct keyring **keyring_out, struct error *err) {
    struct keyring *keyring = calloc(1, sizeof *keyring);
    CHECK(keyring);
    *keyring_out = keyring;
    enum status status = curve_keys_read_pair(dir, CURVE_COORDINATOR_SECRET, &keyring->own, err);
    if (status == STATUS_OK) status = open_lists(keyring, dir, err);
    if (status == STATUS_OK) status = zap_open(loop, zmq_context, &keyring->zap, err);
    if (status != STATUS_OK) {
        keyring_close(keyring_out);
        return status;
    }
    for (uint32_t i = 0; i < DOORS; i++)
        zap_add(keyring->zap, doors[i].domain, keyring->list[i]);
    return STATUS_OK;
}

void keyring_guard(const struct keyring *keyring, enum keyring_door door,
                   struct chan_options *options) {
    if (!keyring) return;
    options->public_key = keyring->own.public_key;
    options->secret_key = keyring->own.secret_key;
    options->zap = keyring->zap;
    options->zap_domain = doors[door].domain;
}

void keyring_reread(struct keyring *keyring) {
    for (uint32_t i = 0; i < DOORS; i++) {
        struct allow_list *list = keyring->list[i];
        struct error err;
        if (allow_list_reread(list, &err) == STATUS_OK)
            log_info("allow_list", "path=\"%s\" keys=%u", allow_list_path(list),
                     allow_list_count(list));
        else
            log_warn("allow_list_not_read", "keys_kept=%u reason=\"%s\"", allow_list_count(list),
                     err.text);
    }
}

void keyring_close(struct keyring **keyring_inout) {
    struct keyring *keyring = *keyring_inout;
    *keyring_inout = NULL;
    if (keyring->zap) zap_close(&keyring->zap);
    for (uint32_t i = 0; i < DOORS; i++)
        if (keyring->list[i]) allow_list_close(&keyring->list[i]);
    explicit_bzero(&keyring->own, sizeof keyring->own);
    free(keyring);
}
