/* Threads that share the work of one op: a fork-join team.
 *
 * team_run splits [0, task_count) over the threads; which thread runs which task is free, so a
 * task's result must not depend on it (kernel.h, rule 2). Idle members sleep on a futex after a
 * bounded spin; the spin is zero where the machine has fewer free cores than threads want.
 *
 * Thread: one caller at a time; tasks must not call team_run.
 */
#ifndef ESPALIER_TEAM_H
#define ESPALIER_TEAM_H

#include <stdint.h>

#define TEAM_THREADS_MAX 256u

struct kernel_team;

typedef void team_task_fn(void *arg, uint32_t task, uint32_t thread);

/* threads includes the caller and is 1..TEAM_THREADS_MAX. spin: iterations before sleeping, 0 to
 * sleep at once. NULL if the threads cannot be had. */
struct kernel_team *team_create(uint32_t threads, uint32_t spin);
void team_destroy(struct kernel_team **team);
uint32_t team_threads(const struct kernel_team *team); /* 1 for NULL */

/* Run fn(arg, task, thread) for every task and return when all are done. Each thread begins with
 * neighbouring tasks of its own and then takes what others have left. team may be NULL. */
void team_run(struct kernel_team *team, team_task_fn *fn, void *arg, uint32_t task_count);

#endif
