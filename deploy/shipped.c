#include "shipped.h"

#include <stdio.h>
#include <unistd.h>

#include "process.h"

#define INSTALLED "../share/espalier/"

static const char *const name[SHIPPED_COUNT] = {
    [SHIPPED_MODEL] = INSTALLED "model",
    [SHIPPED_DRAFTER] = INSTALLED "drafter",
    [SHIPPED_VERIFY_LIMITS] = INSTALLED "verify.thresholds",
    [SHIPPED_VERIFY_TOKENS] = INSTALLED "verify.tokens",
};

const char *shipped_path(enum shipped what) {
    static char path[SHIPPED_COUNT][PROCESS_PATH_MAX];
    if (path[what][0] == '\0' &&
        (!process_path_beside(name[what], path[what]) || access(path[what], F_OK) != 0))
        snprintf(path[what], PROCESS_PATH_MAX, ESPALIER_DEPLOY_DIR "/%s",
                 name[what] + sizeof INSTALLED - 1);
    return path[what];
}
