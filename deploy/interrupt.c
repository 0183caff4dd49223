#include "interrupt.h"

#include <signal.h>
#include <stddef.h>

static int caught;

static void on_signal(int number) {
    (void)number;
    __atomic_store_n(&caught, 1, __ATOMIC_SEQ_CST);
}

const int *interrupt_catch(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return &caught;
}
