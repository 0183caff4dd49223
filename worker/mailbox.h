/* A bounded queue of pointers between two threads of a worker. It never blocks the sender: a full
 * box is the sender's to handle. Any thread. */
#ifndef ESPALIER_MAILBOX_H
#define ESPALIER_MAILBOX_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define MAILBOX_LETTERS_MAX 64u

struct mailbox {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    void *letter[MAILBOX_LETTERS_MAX]; /* a ring; owned by whoever takes them */
    uint32_t first, count;
};

void mailbox_init(struct mailbox *box);

/* Letters still inside are the caller's to take before. */
void mailbox_deinit(struct mailbox *box);

/* False: full, and the letter is still the caller's. */
bool mailbox_put(struct mailbox *box, void *letter);

void *mailbox_wait(struct mailbox *box); /* sleeps until there is one */
void *mailbox_take(struct mailbox *box); /* NULL where there is none */

#endif
