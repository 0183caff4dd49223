#include "mailbox.h"

#include <stddef.h>

#include "base/check.h"

void mailbox_init(struct mailbox *box) {
    *box = (struct mailbox){0};
    CHECK(pthread_mutex_init(&box->lock, NULL) == 0);
    CHECK(pthread_cond_init(&box->arrived, NULL) == 0);
}

void mailbox_deinit(struct mailbox *box) {
    CHECK(box->count == 0);
    pthread_cond_destroy(&box->arrived);
    pthread_mutex_destroy(&box->lock);
}

bool mailbox_put(struct mailbox *box, void *letter) {
    CHECK(letter);
    pthread_mutex_lock(&box->lock);
    bool room = box->count < MAILBOX_LETTERS_MAX;
    if (room) {
        box->letter[(box->first + box->count) % MAILBOX_LETTERS_MAX] = letter;
        box->count++;
        pthread_cond_signal(&box->arrived);
    }
    pthread_mutex_unlock(&box->lock);
    return room;
}

/* The lock is held. */
static void *take_first(struct mailbox *box) {
    if (box->count == 0) return NULL;
    void *letter = box->letter[box->first];
    box->first = (box->first + 1) % MAILBOX_LETTERS_MAX;
    box->count--;
    return letter;
}

void *mailbox_wait(struct mailbox *box) {
    pthread_mutex_lock(&box->lock);
    while (box->count == 0)
        pthread_cond_wait(&box->arrived, &box->lock);
    void *letter = take_first(box);
    pthread_mutex_unlock(&box->lock);
    return letter;
}

void *mailbox_take(struct mailbox *box) {
    pthread_mutex_lock(&box->lock);
    void *letter = take_first(box);
    pthread_mutex_unlock(&box->lock);
    return letter;
}
