#include "weight_ahead.h"

#include <fcntl.h>
#include <sys/uio.h>

#define AHEAD_BYTES (64u << 20)  /* asked for and not read yet; in the page cache, not ours */
#define ASK_BYTES   (128u << 10) /* at once: what a kernel takes of a call with usual settings */

/* A call that may not wait reads it, or says that it would have to. */
static bool is_cached(int fd, uint64_t offset) {
    char byte;
    const struct iovec to = {.iov_base = &byte, .iov_len = sizeof byte};
    return preadv2(fd, &to, 1, (off_t)offset, RWF_NOWAIT) == 1;
}

static void ask(int fd, uint64_t begin, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += ASK_BYTES) {
        uint64_t length = bytes - at < ASK_BYTES ? bytes - at : ASK_BYTES;
        (void)posix_fadvise(fd, (off_t)(begin + at), (off_t)length, POSIX_FADV_WILLNEED);
    }
}

/* Advice alone: what fails here is found when it is read. */
static void ask_for_task(const struct weight_ahead *ahead, const struct weight_task *task) {
    struct weight_grid grid = weight_task_data_grid(task);
    for (uint32_t p = 0; p < task->part_count; p++) {
        struct weight_piece piece = weight_task_piece(task, p);
        const struct tensor_info *tensor = piece.part->data;
        uint64_t begin = tensor->offset + piece.row * (uint64_t)grid.row_bytes;
        if (grid.stride == grid.row_bytes) {
            ask(ahead->fd[tensor->file], begin, piece.row_count * (uint64_t)grid.row_bytes);
            continue;
        }
        for (uint32_t r = 0; r < piece.row_count; r++)
            ask(ahead->fd[tensor->file], begin + r * (uint64_t)grid.row_bytes + grid.begin_bytes,
                grid.slice_bytes);
    }
}

void weight_ahead_of(struct weight_ahead *ahead, uint32_t idx) {
    const struct weight_task *task = &ahead->task[idx];
    if (!atomic_load(&ahead->cold)) {
        struct weight_piece piece = weight_task_piece(task, 0);
        struct weight_grid grid = weight_task_data_grid(task);
        const struct tensor_info *tensor = piece.part->data;
        uint64_t offset = tensor->offset + piece.row * (uint64_t)grid.row_bytes + grid.begin_bytes;
        if (piece.row_count == 0 || is_cached(ahead->fd[tensor->file], offset)) return;
        atomic_store(&ahead->cold, true);
    }
    uint64_t bytes = 0;
    uint32_t end = idx + 1; /* of the window */
    while (end < ahead->task_count && bytes < AHEAD_BYTES)
        bytes += weight_task_bytes(&ahead->task[end++]);
    uint32_t next = atomic_load(&ahead->next);
    while (next < end) {
        uint32_t asked = next > idx ? next : idx + 1; /* what is before is being read */
        if (!atomic_compare_exchange_weak(&ahead->next, &next, asked + 1)) continue;
        if (asked < end) ask_for_task(ahead, &ahead->task[asked]);
        next = asked + 1;
    }
}
