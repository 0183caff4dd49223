#include "base/check.h"

#include <execinfo.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"

#define BACKTRACE_FRAMES_MAX 32

_Noreturn void check_failed(const char *expression, const char *file, int line, const char *func) {
    log_write(LOG_LEVEL_FATAL, "check_failed", "expression=\"%s\" at=%s:%d function=%s pid=%d",
              expression, file, line, func, (int)getpid());
    void *frames[BACKTRACE_FRAMES_MAX];
    backtrace_symbols_fd(frames, backtrace(frames, BACKTRACE_FRAMES_MAX), STDERR_FILENO);
    _exit(EXIT_CODE_INVARIANT);
}
