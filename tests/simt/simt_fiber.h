/* A stack and a place to go on from. x86-64 only; callers hold nothing across a switch but what the
 * calling convention saves. */
#ifndef ESPALIER_SIMT_FIBER_H
#define ESPALIER_SIMT_FIBER_H

struct simt_fiber;

/* Lives as long as the process. */
struct simt_fiber *simt_fiber_create(void);

/* The next switch to it calls entry(), which never returns, on an empty stack. */
void simt_fiber_reset(struct simt_fiber *fiber, void (*entry)(void));

/* Go on in `to`; returns when somebody switches back to `from`, which may be a fiber that was never
 * reset: then it stands for the caller's own stack. */
void simt_fiber_switch(struct simt_fiber *from, struct simt_fiber *to);

#endif
