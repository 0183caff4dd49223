#include "curve_keys.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "base/check.h"
#include "file.h"

#define PATH_BYTES_MAX 4096u
#define KEY_FILE_BYTES 64u /* a key, a line's end, and what an editor adds */

bool curve_keys_is_key(const char *text) {
    uint8_t key[CURVE_KEY_TEXT_LEN / 5 * 4];
    return strlen(text) == CURVE_KEY_TEXT_LEN && zmq_z85_decode(key, text) != NULL;
}

void curve_keys_make(struct curve_pair *pair_out) {
    CHECK(zmq_curve_keypair(pair_out->public_key, pair_out->secret_key) == 0);
}

static enum status read_key(const char *dir, const char *name, bool secret,
                            char key_out[CURVE_KEY_TEXT_LEN + 1], struct error *err) {
    char path[PATH_BYTES_MAX], text[KEY_FILE_BYTES + 1] = "";
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return error_set(err, STATUS_INVALID_ARGUMENT, "found a path of %zu bytes, accepted: %zu",
                         strlen(dir), sizeof path);
    int fd;
    uint64_t bytes;
    enum status status = file_open(path, &fd, &bytes, err);
    if (status != STATUS_OK) return status;
    if (secret) status = file_check_owner(fd, path, 0077, "mode 0600", err);
    if (status == STATUS_OK && bytes <= KEY_FILE_BYTES)
        status = file_read_at(fd, path, text, bytes, 0, err);
    close(fd);
    text[strcspn(text, "\r\n")] = '\0';
    bool is_key = status == STATUS_OK && curve_keys_is_key(text);
    if (is_key) memcpy(key_out, text, CURVE_KEY_TEXT_LEN + 1);
    explicit_bzero(text, sizeof text);
    if (status != STATUS_OK || is_key) return status;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "%s: found %llu bytes that are no key, accepted: %u characters of Z85", path,
                     (unsigned long long)bytes, CURVE_KEY_TEXT_LEN);
}

enum status curve_keys_read_pair(const char *dir, const char *name, struct curve_pair *pair_out,
                                 struct error *err) {
    enum status status = read_key(dir, name, true, pair_out->secret_key, err);
    if (status != STATUS_OK) return status;
    CHECK(zmq_curve_public(pair_out->public_key, pair_out->secret_key) == 0);
    return STATUS_OK;
}

enum status curve_keys_read_server(const char *dir, char key_out[CURVE_KEY_TEXT_LEN + 1],
                                   struct error *err) {
    return read_key(dir, CURVE_COORDINATOR_PUBLIC, false, key_out, err);
}

enum status curve_keys_read_caller(const char *dir, const char *name,
                                   struct curve_caller *caller_out, struct error *err) {
    enum status status = curve_keys_read_server(dir, caller_out->server_public_key, err);
    if (status == STATUS_OK) status = curve_keys_read_pair(dir, name, &caller_out->own, err);
    return status;
}
