/* Endpoints as text: what is one, what is local, what is refused and how. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "endpoint.h"

#define LONG_NAME                                                                                  \
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" \
    "aaaaaaa"

static void forms_are_told_apart(void **state) {
    (void)state;
    enum { NO, YES, REFUSED }; /* local, remote, refused */
    static const struct {
        const char *text;
        int bind, connect; /* local? */
    } cases[] = {
        {"ipc:///run/espalier/client.sock", YES, YES},
        {"ipc:///d/" LONG_NAME "aaaaa", YES, YES}, /* 107 bytes */
        {"ipc:///d/" LONG_NAME "aaaaaa", REFUSED, REFUSED},
        {"ipc://", REFUSED, REFUSED},
        {"ipc:///", REFUSED, REFUSED},
        {"ipc:///name", REFUSED, REFUSED}, /* no directory of ours */
        {"ipc:///dir/", REFUSED, REFUSED},
        {"ipc://relative/name", REFUSED, REFUSED},
        {"ipc://*", REFUSED, REFUSED},
        {"ipc://@abstract", REFUSED, REFUSED}, /* no directory guards it */
        {"tcp://127.0.0.1:5555", YES, YES},
        {"tcp://127.255.0.9:1", YES, YES},
        {"tcp://[::1]:5555", YES, YES},
        {"tcp://127.0.0.1:0", YES, REFUSED},
        {"tcp://0.0.0.0:5555", NO, NO},
        {"tcp://*:5555", NO, REFUSED},
        {"tcp://[::]:5555", NO, NO},
        {"tcp://128.0.0.1:5555", NO, NO},
        {"tcp://126.255.255.255:5555", NO, NO},
        {"tcp://192.0.2.7:65535", NO, NO},
        {"tcp://[2001:db8::1]:80", NO, NO},
        {"tcp://[::ffff:127.0.0.1]:80", NO, NO}, /* strict is safe here */
        {"tcp://localhost:80", REFUSED, YES},    /* a name may be anything: not to bind */
        {"tcp://host-1.example:80", REFUSED, NO},
        {"tcp://eth0:80", REFUSED, NO},
        {"tcp://eth0;192.0.2.1:80", REFUSED, REFUSED},
        {"tcp://127.0.0.1", REFUSED, REFUSED},
        {"tcp://127.0.0.1:", REFUSED, REFUSED},
        {"tcp://127.0.0.1:x", REFUSED, REFUSED},
        {"tcp://127.0.0.1:*", REFUSED, REFUSED},
        {"tcp://127.0.0.1:-1", REFUSED, REFUSED},
        {"tcp://127.0.0.1:65536", REFUSED, REFUSED},
        {"tcp://127.0.0.1:000080", REFUSED, REFUSED},
        {"tcp://127.0.0.1:80 ", REFUSED, REFUSED},
        {"tcp://:80", REFUSED, REFUSED},
        {"tcp://::1:80", REFUSED, REFUSED},
        {"tcp://[::1:80", REFUSED, REFUSED},
        {"tcp://[]:80", REFUSED, REFUSED},
        {"tcp://[127.0.0.1]:80", REFUSED, REFUSED},
        {"inproc://x", REFUSED, REFUSED},
        {"udp://127.0.0.1:80", REFUSED, REFUSED},
        {"pgm://127.0.0.1:80", REFUSED, REFUSED},
        {"ws://127.0.0.1:80", REFUSED, REFUSED},
        {"IPC:///a/b", REFUSED, REFUSED},
        {"/a/b", REFUSED, REFUSED},
        {"", REFUSED, REFUSED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int use = ENDPOINT_BIND; use <= ENDPOINT_CONNECT; use++) {
            struct endpoint endpoint;
            struct error err = {0};
            int expected = use == ENDPOINT_BIND ? cases[i].bind : cases[i].connect;
            enum status status = endpoint_parse(cases[i].text, (enum endpoint_use)use, &endpoint,
                                                &err);
            int found = status != STATUS_OK ? REFUSED : endpoint.local ? YES : NO;
            if (found != expected)
                fail_msg("\"%s\" to %s: %d, expected %d: %s", cases[i].text,
                         use == ENDPOINT_BIND ? "bind" : "connect", found, expected, err.text);
            if (status == STATUS_OK) continue;
            assert_int_equal(status, STATUS_INVALID_ARGUMENT);
            assert_non_null(strstr(err.text, "accepted"));
        }
    }
}

static void parts_are_as_given(void **state) {
    (void)state;
    struct endpoint endpoint;
    assert_int_equal(endpoint_parse("ipc:///a/b.sock", ENDPOINT_BIND, &endpoint, NULL), STATUS_OK);
    assert_int_equal(endpoint.scheme, ENDPOINT_IPC);
    assert_string_equal(endpoint.path, "/a/b.sock");
    assert_int_equal(endpoint_parse("tcp://[::1]:9", ENDPOINT_BIND, &endpoint, NULL), STATUS_OK);
    assert_int_equal(endpoint.scheme, ENDPOINT_TCP);
    assert_string_equal(endpoint.host, "::1");
    assert_true(endpoint.ipv6);
    assert_int_equal(endpoint_parse("tcp://*:9", ENDPOINT_BIND, &endpoint, NULL), STATUS_OK);
    assert_string_equal(endpoint.host, "*");
    assert_false(endpoint.ipv6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_are_told_apart),
        cmocka_unit_test(parts_are_as_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
