#include "printed.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

int printed(const char *program_name, int exit_code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return exit_code;
    return printed_not(program_name, exit_code, errno);
}

int printed_not(const char *program_name, int exit_code, int write_errno) {
    if (write_errno == EPIPE) return exit_code;
    fprintf(stderr, "%s: cannot write the answer: %s\n", program_name, strerror(write_errno));
    return EXIT_CODE_FAILED;
}
