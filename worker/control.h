/* The control thread of a worker: everything but computing.
 *
 *   SEEKING ──connected: HELLO, WELCOME──▶ SERVING ──coordinator gone──▶ exit 69
 *      ▲                                                │ --linger
 *      └────────────────────────────────────────────────┘
 *
 * With --linger it keeps its weights for the next coordinator, however the last one ended; SIGTERM
 * ends it at once.
 *
 * It talks to the coordinator, answers probes, sends heartbeats, and gives orders to the compute
 * thread (compute.h). It learns of the coordinator's death from the kernel (pidfd, same machine)
 * or from the broken connection, and ends the process at once: a rank nobody asks for anything
 * must not hold a card. Thread: the main one.
 */
#ifndef ESPALIER_CONTROL_H
#define ESPALIER_CONTROL_H

#include "checkpoint.h"
#include "worker_config.h"

/* Serve until told to end; returns the exit code. A status is why this process never came to
 * serve. config and checkpoints are borrowed; drafter: NULL where there is none. */
enum status control_run(const struct worker_config *config, const struct checkpoint *checkpoint,
                        const struct checkpoint_drafter *drafter, int *exit_code_out,
                        struct error *err) MUST_USE;

#endif
