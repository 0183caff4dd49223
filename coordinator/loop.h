/* The coordinator's shell: libuv around the core.
 *
 *     clients ─▶ rpc ─┐                      ┌─▶ rpc ─▶ clients
 *     workers ─▶ link ┼─ event ─▶ core_step ─┼─▶ link ─▶ workers
 *     clock, signals ─┘             ▲        └─▶ jobs ─┐
 *                                   └──────────────────┘
 *
 * One thread. The core is never entered twice: what happens while effects are performed (a reader
 * found too slow, a worker found unreachable, a short job done) waits until they all are.
 *
 * SIGTERM and SIGINT drain: nothing new is accepted, what runs may finish within --drain-timeout,
 * exit code 0. A second one ends at once. SIGQUIT logs what goes on and changes nothing. SIGHUP
 * reads the lists of those who may connect, where there are any.
 */
#ifndef ESPALIER_LOOP_H
#define ESPALIER_LOOP_H

#include "coordinator_config.h"
#include "core/core.h"
#include "text/tokenizer.h"

struct loop;

struct loop_options {
    const struct coordinator_config *config;
    const struct model_spec *spec;
    const struct tokenizer *tokenizer;
    uint64_t model_fingerprint;
    const char *boot_id;
}; /* all borrowed for the loop's life */

/* Takes the run directory, binds every endpoint, publishes the ready file. Errors: those of
 * run_dir_lock, core_create, keyring_open, rpc_server_open, worker_link_open, http_server_open. */
enum status loop_open(const struct loop_options *options, struct loop **loop_out,
                      struct error *err) MUST_USE;

/* Serve until told to end. Returns the process's exit code. */
int loop_run(struct loop *loop);
void loop_close(struct loop **loop);

#endif
