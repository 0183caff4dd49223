#include "net_support.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>
/* cmocka needs the four above. */
#include <cmocka.h>

#define TURN_MS 2

#ifdef __SANITIZE_THREAD__
#define THREADS_AT_FORK 2 /* ThreadSanitizer has one of its own, which knows about forks */
#else
#define THREADS_AT_FORK 1
#endif

/* ============================== directories =================================================== */

void net_dir_init(struct net_dir *dir) {
    snprintf(dir->path, sizeof dir->path, "/tmp/espalier-net-XXXXXX");
    assert_non_null(mkdtemp(dir->path));
    snprintf(dir->endpoint, sizeof dir->endpoint, "ipc://%s/s", dir->path);
}

void net_dir_deinit(struct net_dir *dir) {
    DIR *list = opendir(dir->path);
    assert_non_null(list);
    struct dirent *entry;
    while ((entry = readdir(list)) != NULL) {
        char path[NET_PATH_MAX + 256];
        snprintf(path, sizeof path, "%s/%s", dir->path, entry->d_name);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) remove(path);
    }
    closedir(list);
    assert_int_equal(rmdir(dir->path), 0);
}

bool net_file_exists(const struct net_dir *dir, const char *name) {
    char path[NET_PATH_MAX + 64];
    struct stat stat;
    snprintf(path, sizeof path, "%s/%s", dir->path, name);
    return lstat(path, &stat) == 0;
}

/* ============================== loops ========================================================= */

static void nothing(uv_timer_t *timer) {
    (void)timer;
}

static void note_closed(uv_handle_t *handle) {
    *(bool *)handle->data = true;
}

bool net_run_until(uv_loop_t *loop, bool (*done)(void *user), void *user) {
    uv_timer_t timer;
    uv_timer_init(loop, &timer);
    uv_timer_start(&timer, nothing, TURN_MS, TURN_MS);
    uint64_t end_ns = uv_hrtime() + NET_WAIT_MS * UINT64_C(1000000);
    while (!done(user) && uv_hrtime() < end_ns)
        uv_run(loop, UV_RUN_ONCE);
    bool closed = false;
    timer.data = &closed;
    uv_close((uv_handle_t *)&timer, note_closed);
    while (!closed)
        uv_run(loop, UV_RUN_NOWAIT);
    return done(user);
}

void net_finish(uv_loop_t *loop) {
    uv_run(loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(loop), 0);
}

/* ============================== peers ========================================================= */

void net_peer_init(struct net_peer *peer, const char *endpoint, const char *routing_id) {
    int linger = 0;
    peer->context = zmq_ctx_new();
    peer->socket = zmq_socket(peer->context, ZMQ_DEALER);
    assert_non_null(peer->socket);
    assert_int_equal(zmq_setsockopt(peer->socket, ZMQ_LINGER, &linger, sizeof linger), 0);
    if (routing_id != NULL)
        assert_int_equal(
            zmq_setsockopt(peer->socket, ZMQ_ROUTING_ID, routing_id, strlen(routing_id)), 0);
    assert_int_equal(zmq_connect(peer->socket, endpoint), 0);
}

void net_peer_deinit(struct net_peer *peer) {
    zmq_close(peer->socket);
    zmq_ctx_term(peer->context);
}

bool net_peer_send(struct net_peer *peer, const void *const *data, const size_t *size,
                   size_t count) {
    for (size_t i = 0; i < count; i++) {
        int flags = ZMQ_DONTWAIT | (i + 1 < count ? ZMQ_SNDMORE : 0);
        if (zmq_send(peer->socket, data[i], size[i], flags) < 0) return false;
    }
    return true;
}

bool net_peer_send_text(struct net_peer *peer, const char *const *part, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int flags = ZMQ_DONTWAIT | (i + 1 < count ? ZMQ_SNDMORE : 0);
        if (zmq_send(peer->socket, part[i], strlen(part[i]), flags) < 0) return false;
    }
    return true;
}

bool net_peer_try_receive(struct net_peer *peer, struct net_message *message_out) {
    *message_out = (struct net_message){0};
    int more = 1;
    while (more != 0) {
        zmq_msg_t part;
        zmq_msg_init(&part);
        if (zmq_msg_recv(&part, peer->socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&part);
            return false;
        }
        assert_true(message_out->count < NET_PARTS_MAX);
        size_t i = message_out->count++;
        message_out->size[i] = zmq_msg_size(&part);
        message_out->data[i] = calloc(1, zmq_msg_size(&part) + 1);
        assert_non_null(message_out->data[i]);
        memcpy(message_out->data[i], zmq_msg_data(&part), zmq_msg_size(&part));
        more = zmq_msg_more(&part);
        zmq_msg_close(&part);
    }
    return true;
}

struct receiving {
    struct net_peer *peer;
    struct net_message *message;
    bool received;
};

static bool has_received(void *user) {
    struct receiving *receiving = user;
    if (!receiving->received)
        receiving->received = net_peer_try_receive(receiving->peer, receiving->message);
    return receiving->received;
}

bool net_peer_receive(struct net_peer *peer, uv_loop_t *loop, struct net_message *message_out) {
    struct receiving receiving = {peer, message_out, false};
    if (loop != NULL) return net_run_until(loop, has_received, &receiving);
    zmq_pollitem_t item = {.socket = peer->socket, .events = ZMQ_POLLIN};
    zmq_poll(&item, 1, NET_WAIT_MS);
    return has_received(&receiving);
}

void net_message_free(struct net_message *message) {
    for (size_t i = 0; i < message->count; i++)
        free(message->data[i]);
    *message = (struct net_message){0};
}

/* ============================== processes ===================================================== */

int net_count_entries(const char *path) {
    int count = 0;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

pid_t net_fork_held(struct net_gate *hold, void (*child)(void *user), void *user) {
    int threads = net_count_entries("/proc/self/task");
    if (threads > THREADS_AT_FORK) fail_msg("a fork beside %d threads", threads);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv("CMOCKA_TEST_ABORT", "1", 1); /* a failed assertion must not go on with the tests */
        if (hold != NULL) net_gate_wait(hold);
        child(user);
        _exit(0);
    }
    return pid;
}

pid_t net_fork(void (*child)(void *user), void *user) {
    return net_fork_held(NULL, child, user);
}

void *net_shared_create(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

void net_shared_destroy(void *memory, size_t bytes) {
    assert_int_equal(munmap(memory, bytes), 0);
}

void net_kill(pid_t pid, int signal) {
    assert_int_equal(kill(pid, signal), 0);
    if (signal == SIGSTOP || signal == SIGCONT) return;
    while (waitpid(pid, NULL, 0) < 0)
        assert_int_equal(errno, EINTR);
}

void net_gate_init(struct net_gate *gate) {
    assert_int_equal(pipe(gate->fd), 0);
}

void net_gate_open(const struct net_gate *gate, char what) {
    assert_int_equal(write(gate->fd[1], &what, 1), 1);
}

char net_gate_wait(struct net_gate *gate) {
    char what = '\0';
    struct pollfd pollfd = {.fd = gate->fd[0], .events = POLLIN};
    assert_int_equal(poll(&pollfd, 1, NET_WAIT_MS), 1);
    assert_int_equal(read(gate->fd[0], &what, 1), 1);
    return what;
}

void net_gate_deinit(struct net_gate *gate) {
    close(gate->fd[0]);
    close(gate->fd[1]);
}

size_t net_resident_bytes(void) {
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld %ld", &pages, &resident), 2);
    fclose(file);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}
