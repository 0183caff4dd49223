/* What a service manager hears, by what $NOTIFY_SOCKET names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "service_notify.h"

static int listen_at(const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    memcpy(address.sun_path, name, length);
    if (name[0] == '@') address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)),
                     0);
    return fd;
}

static void a_manager_hears(void **state) {
    (void)state;
    char path[64], abstract[64];
    snprintf(path, sizeof path, "/tmp/espalier-notify-%d", (int)getpid());
    snprintf(abstract, sizeof abstract, "@espalier-notify-%d", (int)getpid());
    const char *const names[] = {path, abstract};
    for (size_t i = 0; i < 2; i++) {
        int fd = listen_at(names[i]);
        char heard[64] = "";
        setenv("NOTIFY_SOCKET", names[i], 1);
        assert_true(service_notify("READY=1"));
        assert_int_equal(recv(fd, heard, sizeof heard, 0), 7);
        assert_string_equal(heard, "READY=1");
        close(fd);
        unlink(names[i]);
        assert_false(service_notify("READY=1")); /* nobody there any more */
    }
}

static void nobody_asks(void **state) {
    (void)state;
    char longer[300];
    memset(longer, '/', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    const char *const names[] = {"", "/", "relative", longer};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        setenv("NOTIFY_SOCKET", names[i], 1);
        assert_false(service_notify("READY=1"));
    }
    unsetenv("NOTIFY_SOCKET");
    assert_false(service_notify("READY=1"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_manager_hears),
                                       cmocka_unit_test(nobody_asks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
