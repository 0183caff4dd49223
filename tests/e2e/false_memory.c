/* What stands between a worker and its memory in test_e2e_self_test: loaded in front of libc
 * (LD_PRELOAD), it makes memory that is not what was asked for. ESPALIER_FALSE_MEMORY says which:
 *
 *     attention    two system pages of the cache's first layer are one
 *     pool         two of its second layer, which the attention's rung does not read
 *     collective   of what the ranks share, this one has all but the head for itself
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "comm_shm.h"

#define SYSTEM_PAGE 4096u

int mprotect(void *memory, size_t bytes, int mode);
void *mmap(void *memory, size_t bytes, int mode, int flags, int fd, off_t offset);

static bool is_wanted(const char *fault) {
    const char *wanted = getenv("ESPALIER_FALSE_MEMORY");
    return wanted && strcmp(wanted, fault) == 0;
}

static void *real_mmap(void *memory, size_t bytes, int mode, int flags, int fd, off_t offset) {
    return (void *)syscall(SYS_mmap, memory, bytes, mode, flags, fd, offset);
}

static void make_one(char *first) {
    int fd = memfd_create("one", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, SYSTEM_PAGE) != 0) abort();
    for (int i = 0; i < 2; i++) {
        char *page = first + i * SYSTEM_PAGE;
        if (real_mmap(page, SYSTEM_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) !=
            page)
            abort();
    }
    close(fd);
}

/* A pool makes its layers writable one after the other, and nothing else does so. */
int mprotect(void *memory, size_t bytes, int mode) {
    static int layers;
    int status = (int)syscall(SYS_mprotect, memory, bytes, mode);
    if (status != 0 || !(mode & PROT_WRITE)) return status;
    layers++;
    if ((layers == 1 && is_wanted("attention")) || (layers == 2 && is_wanted("pool")))
        make_one(memory);
    return status;
}

void *mmap(void *memory, size_t bytes, int mode, int flags, int fd, off_t offset) {
    char *made = real_mmap(memory, bytes, mode, flags, fd, offset);
    if (made == MAP_FAILED || !(flags & MAP_SHARED) || !is_wanted("collective")) return made;
    size_t head = COMM_SHM_SLOT_BYTES; /* what it lies in */
    if (real_mmap(made + head, bytes - head, mode, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                  0) != made + head)
        abort();
    return made;
}
