#include "simt_fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "kernel.h"

#define STACK_BYTES (256u << 10)
#define GUARD_BYTES 4096u
#define SAVED_WORDS 6 /* registers that a called function must keep */

/* Stacks begin at different places within their pages, or what fibers use most of them would all
 * meet in a few lines of the caches. */
#define SHIFTS      64u
#define SHIFT_BYTES (17u * 64u)

struct simt_fiber {
    void *stack_pointer;
    unsigned char *stack, *end; /* of what is used */
};

/* Keep the registers of the caller on its stack, and take those of the other from its own. */
void simt_fiber_swap(void **from_stack_pointer, void *to_stack_pointer);
__asm__(".text\n"
        ".globl simt_fiber_swap\n"
        ".type simt_fiber_swap, @function\n"
        "simt_fiber_swap:\n"
        "    push %rbp\n"
        "    push %rbx\n"
        "    push %r12\n"
        "    push %r13\n"
        "    push %r14\n"
        "    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n"
        "    pop %r14\n"
        "    pop %r13\n"
        "    pop %r12\n"
        "    pop %rbx\n"
        "    pop %rbp\n"
        "    ret\n"
        ".size simt_fiber_swap, . - simt_fiber_swap\n");

struct simt_fiber *simt_fiber_create(void) {
    struct simt_fiber *fiber = calloc(1, sizeof *fiber);
    KERNEL_CHECK(fiber != NULL);
    fiber->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    KERNEL_CHECK(fiber->stack != MAP_FAILED);
    KERNEL_CHECK(mprotect(fiber->stack, GUARD_BYTES, PROT_NONE) == 0);
    static _Atomic uint32_t created;
    fiber->end = fiber->stack + STACK_BYTES - created++ % SHIFTS * SHIFT_BYTES;
    return fiber;
}

/* Functions that a fiber was in when it was given up will not return, and what AddressSanitizer
 * keeps of their frames would be found in frames that come to lie there. */
static void forget_frames(struct simt_fiber *fiber) {
#ifdef __SANITIZE_ADDRESS__
    unsigned char *begin = fiber->stack_pointer;
    if (begin) __asan_unpoison_memory_region(begin, (size_t)(fiber->end - begin));
#else
    (void)fiber;
#endif
}

void simt_fiber_reset(struct simt_fiber *fiber, void (*entry)(void)) {
    forget_frames(fiber);
    /* As if entry's caller had pushed a return address: the stack is aligned as at a call. */
    uintptr_t *top = (uintptr_t *)(void *)fiber->end - 1;
    *top = 0;
    *--top = (uintptr_t)entry;
    fiber->stack_pointer = top - SAVED_WORDS;
}

void simt_fiber_switch(struct simt_fiber *from, struct simt_fiber *to) {
    simt_fiber_swap(&from->stack_pointer, to->stack_pointer);
}
