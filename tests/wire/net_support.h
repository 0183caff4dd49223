/* What the transport's tests share: directories that go away, a loop that runs until something is
 * true, and peers made of nothing but ZeroMQ calls, so that no fake shares code with what it tests.
 *
 * Waits have a limit only so that a broken build fails instead of hanging: generous, never
 * asserted.
 */
#ifndef ESPALIER_NET_SUPPORT_H
#define ESPALIER_NET_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <uv.h>

#define NET_WAIT_MS   30000
#define NET_PATH_MAX  108
#define NET_PARTS_MAX 8
#define NET_PART_MAX  (1u << 17)

/* A new directory of mode 0700, and "ipc://DIR/s" in it. */
struct net_dir {
    char path[NET_PATH_MAX];
    char endpoint[NET_PATH_MAX + 16];
};
void net_dir_init(struct net_dir *dir);
void net_dir_deinit(struct net_dir *dir); /* with all its files */
bool net_file_exists(const struct net_dir *dir, const char *name);

/* Run the loop until done(user), or NET_WAIT_MS. Returns done(user). */
bool net_run_until(uv_loop_t *loop, bool (*done)(void *user), void *user);

/* Run the loop until no handle is left, and close it. */
void net_finish(uv_loop_t *loop);

/* A plain DEALER. */
struct net_peer {
    void *context;
    void *socket;
};
void net_peer_init(struct net_peer *peer, const char *endpoint, const char *routing_id);
void net_peer_deinit(struct net_peer *peer);

/* One message of `count` parts; false where ZeroMQ takes it not at once. */
bool net_peer_send(struct net_peer *peer, const void *const *data, const size_t *size,
                   size_t count);
bool net_peer_send_text(struct net_peer *peer, const char *const *part, size_t count);

/* What a peer received. */
struct net_message {
    size_t count;
    size_t size[NET_PARTS_MAX];
    unsigned char *data[NET_PARTS_MAX]; /* owned, each with a NUL behind it */
};

/* Receive one message, while the loop runs (NULL: just wait). False after NET_WAIT_MS. */
bool net_peer_receive(struct net_peer *peer, uv_loop_t *loop, struct net_message *message_out);
bool net_peer_try_receive(struct net_peer *peer, struct net_message *message_out);
void net_message_free(struct net_message *message);

/* A pipe over which one process tells the other "I am there". */
struct net_gate {
    int fd[2];
};
void net_gate_init(struct net_gate *gate);
void net_gate_open(const struct net_gate *gate, char what);
char net_gate_wait(struct net_gate *gate);
void net_gate_deinit(struct net_gate *gate);

/* Run child() in a process of its own, which ends with it; returns the pid. The child must create
 * its own ZeroMQ contexts.
 *
 * Asserts that this process has no other thread: a lock that one of ZeroMQ's threads holds at the
 * fork is held for ever in the child, and the sanitizers' allocators have such locks. Whoever needs
 * a child later forks it before the first ZeroMQ context and holds it at a gate. */
pid_t net_fork(void (*child)(void *user), void *user);
pid_t net_fork_held(struct net_gate *hold, void (*child)(void *user), void *user);
void net_kill(pid_t pid, int signal); /* and wait for it, where the signal ends it */

/* Of a directory: this process's threads and descriptors are such in /proc/self. */
int net_count_entries(const char *path);

/* Zeroed memory that children forked later share. */
void *net_shared_create(size_t bytes);
void net_shared_destroy(void *memory, size_t bytes);

size_t net_resident_bytes(void);

#endif
