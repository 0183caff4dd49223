/* How many CPUs there are for how many threads: how many a rank starts, and whether one that waits
 * may spin. */
#ifndef ESPALIER_CPUS_H
#define ESPALIER_CPUS_H

#include <stdint.h>

/* Of `cpus` CPUs, how many are one's where `sharers` of the machine's `ranks` have them: an even
 * part, and no more than a rank's part of the control group's quota (cpu.max) where there is one.
 * At least 1. */
uint32_t cpus_share(uint32_t cpus, uint32_t sharers, uint32_t ranks);

/* So many of the machine's ranks share this process's CPUs; not told, all do. Once, before threads
 * start. */
void cpus_set_sharers(uint32_t ranks);

/* Iterations a waiter should spin before it sleeps, when `threads` threads of each of the machine's
 * `ranks` want to run at once: 0 where those that have our CPUs are more than these, since spinning
 * then keeps the very thread waited for from running. */
uint32_t cpus_spin_budget(uint32_t threads, uint32_t ranks);

#endif
