/* Where processes meet, and what is left when they die. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "process.h"
#include "run_dir.h"

struct place {
    char path[64];
    struct run_dir dir;
    struct error err;
};

static int set_up(void **state) {
    struct place *place = calloc(1, sizeof *place);
    assert_non_null(place);
    snprintf(place->path, sizeof place->path, "/tmp/espalier-unit-XXXXXX");
    assert_non_null(mkdtemp(place->path));
    assert_int_equal(run_dir_choose(place->path, &place->dir, &place->err), STATUS_OK);
    *state = place;
    return 0;
}

static int tear_down(void **state) {
    struct place *place = *state;
    run_dir_remove(&place->dir);
    int gone = rmdir(place->path) != 0 && errno == ENOENT;
    free(place);
    return gone ? 0 : 1;
}

static void defaults_follow_the_environment(void **state) {
    struct place *place = *state;
    struct run_dir dir;
    char expected[64];
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    assert_int_equal(run_dir_choose(NULL, &dir, &place->err), STATUS_OK);
    assert_string_equal(dir.path, "/run/user/7/espalier");
    unsetenv("XDG_RUNTIME_DIR");
    assert_int_equal(run_dir_choose(NULL, &dir, &place->err), STATUS_OK);
    snprintf(expected, sizeof expected, "/tmp/espalier-%u", (unsigned)getuid());
    assert_string_equal(dir.path, expected);
    char path[RUN_DIR_PATH_MAX + 2];
    memset(path, 'a', sizeof path - 1);
    path[0] = '/';
    path[RUN_DIR_PATH_MAX + 1] = '\0';
    assert_int_equal(run_dir_choose(path, &dir, &place->err), STATUS_INVALID_ARGUMENT);
    path[RUN_DIR_PATH_MAX] = '\0';
    assert_int_equal(run_dir_choose(path, &dir, &place->err), STATUS_OK);
    assert_int_equal(run_dir_choose("here", &dir, &place->err), STATUS_INVALID_ARGUMENT);
}

static void only_a_private_directory_will_do(void **state) {
    struct place *place = *state;
    assert_int_equal(run_dir_create(&place->dir, &place->err), STATUS_OK);
    chmod(place->path, 0750);
    assert_int_equal(run_dir_create(&place->dir, &place->err), STATUS_PERMISSION_DENIED);
    chmod(place->path, 0700);
    struct run_dir link;
    char name[80];
    snprintf(name, sizeof name, "%s/link", place->path);
    assert_int_equal(symlink(place->path, name), 0);
    assert_int_equal(run_dir_choose(name, &link, &place->err), STATUS_OK);
    assert_int_equal(run_dir_create(&link, &place->err), STATUS_PERMISSION_DENIED);
    unlink(name);
}

static void one_holder_at_a_time(void **state) {
    struct place *place = *state;
    struct run_dir second = place->dir;
    assert_int_equal(run_dir_lock(&place->dir, &place->err), STATUS_OK);
    assert_int_equal(run_dir_lock(&second, &place->err), STATUS_ALREADY_EXISTS);
    /* A sweep of somebody else's directory changes nothing. */
    struct ready_file ready = {.pid = 1, .process_start = 1, .probe = "p", .boot = "b"};
    assert_int_equal(run_dir_publish(&place->dir, 0, &ready, &place->err), STATUS_OK);
    run_dir_sweep(&second);
    char name[80];
    snprintf(name, sizeof name, "%s/worker-0.ready", place->path);
    assert_int_equal(access(name, F_OK), 0);
    run_dir_unlock(&place->dir);
    assert_int_equal(run_dir_lock(&second, &place->err), STATUS_OK);
    run_dir_unlock(&second);
    run_dir_sweep(&second);
    assert_int_equal(access(name, F_OK), -1);
}

static void ready_files_name_a_living_process(void **state) {
    struct place *place = *state;
    struct ready_file found, ready = {.pid = (uint64_t)getpid(),
                                      .process_start = process_start_time(getpid()),
                                      .endpoint = "ipc:///x/client.sock",
                                      .workers = "tcp://127.0.0.1:4000",
                                      .probe = "127.0.0.1:41234",
                                      .boot = "00112233445566ff"};
    assert_int_equal(run_dir_find(&place->dir, RUN_DIR_COORDINATOR, &found, &place->err),
                     STATUS_UNAVAILABLE);
    assert_int_equal(run_dir_publish(&place->dir, RUN_DIR_COORDINATOR, &ready, &place->err),
                     STATUS_OK);
    assert_int_equal(run_dir_find(&place->dir, RUN_DIR_COORDINATOR, &found, &place->err),
                     STATUS_OK);
    assert_int_equal(found.pid, ready.pid);
    assert_string_equal(found.endpoint, ready.endpoint);
    assert_string_equal(found.workers, ready.workers);
    assert_string_equal(found.probe, ready.probe);
    assert_string_equal(found.boot, ready.boot);
    assert_int_equal(run_dir_find(&place->dir, 0, &found, &place->err), STATUS_UNAVAILABLE);

    /* The number may be given to another process: it is not the one that wrote the file. */
    ready.process_start++;
    assert_int_equal(run_dir_publish(&place->dir, RUN_DIR_COORDINATOR, &ready, &place->err),
                     STATUS_OK);
    assert_int_equal(run_dir_find(&place->dir, RUN_DIR_COORDINATOR, &found, &place->err),
                     STATUS_UNAVAILABLE);
    assert_non_null(strstr(place->err.text, "gone"));
    run_dir_withdraw(&place->dir, RUN_DIR_COORDINATOR);
    assert_int_equal(run_dir_find(&place->dir, RUN_DIR_COORDINATOR, &found, &place->err),
                     STATUS_UNAVAILABLE);
}

static void other_files_are_not_believed(void **state) {
    struct place *place = *state;
    static const char *const texts[] = {"", "pid=1\n", "nonsense",
                                        "pid=0\nstart=1\nendpoint=\n"
                                        "probe=x\nboot=y\n",
                                        "pid=99999999999\nstart=1\nendpoint="
                                        "\nprobe=x\nboot=y\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char name[80];
        struct ready_file found;
        snprintf(name, sizeof name, "%s/worker-2.ready", place->path);
        FILE *file = fopen(name, "w");
        assert_non_null(file);
        fputs(texts[i], file);
        fclose(file);
        assert_int_equal(run_dir_find(&place->dir, 2, &found, &place->err), STATUS_DATA_LOSS);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(defaults_follow_the_environment, set_up, tear_down),
        cmocka_unit_test_setup_teardown(only_a_private_directory_will_do, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_holder_at_a_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(ready_files_name_a_living_process, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_files_are_not_believed, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
