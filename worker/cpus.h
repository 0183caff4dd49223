/* How many CPUs this process may use at once: what decides whether a waiting thread may spin. */
#ifndef ESPALIER_CPUS_H
#define ESPALIER_CPUS_H

#include <stdint.h>

/* At least 1: the affinity mask, cut by the control group's quota (cpu.max) where there is one. */
uint32_t cpus_usable(void);

/* Iterations a waiter should spin before it sleeps, when `threads` threads of this machine want
 * to run at once: 0 where they are more than the CPUs, since spinning then keeps the very thread
 * waited for from running. */
uint32_t cpus_spin_budget(uint32_t threads);

#endif
