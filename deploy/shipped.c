#include "shipped.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"

#define PATH_BYTES_MAX 4096u
#define INSTALLED      "../share/espalier/"

static const char *const name[SHIPPED_COUNT] = {
    [SHIPPED_MODEL] = "model",
    [SHIPPED_DRAFTER] = "drafter",
    [SHIPPED_VERIFY_LIMITS] = "verify.thresholds",
    [SHIPPED_VERIFY_TOKENS] = "verify.tokens",
};

/* False: our own path leaves no room for it. */
static bool installed_path(const char *what, char out[PATH_BYTES_MAX]) {
    ssize_t bytes = readlink("/proc/self/exe", out, PATH_BYTES_MAX);
    CHECK(bytes > 0);
    size_t room = PATH_BYTES_MAX;
    while (bytes > 0 && out[bytes - 1] != '/')
        bytes--;
    room -= (size_t)bytes;
    return (size_t)snprintf(out + bytes, room, INSTALLED "%s", what) < room;
}

const char *shipped_path(enum shipped what) {
    static char path[SHIPPED_COUNT][PATH_BYTES_MAX];
    if (path[what][0] == '\0' &&
        (!installed_path(name[what], path[what]) || access(path[what], F_OK) != 0))
        snprintf(path[what], PATH_BYTES_MAX, ESPALIER_DEPLOY_DIR "/%s", name[what]);
    return path[what];
}
