#include "group_wait.h"

#include "load_bar.h"

#define WATCH_INTERVAL_MS 100u

struct waiting {
    struct load_bar bar;
    bool show;
    bool ready;
};

static bool on_snapshot(void *user, const struct snapshot *snapshot) {
    struct waiting *waiting = user;
    waiting->ready = snapshot->ready;
    if (waiting->show && !snapshot->ready) load_bar_show(&waiting->bar, snapshot);
    return !snapshot->ready;
}

enum status group_wait(const struct client_options *options, bool show, struct error *err) {
    struct client *client;
    enum status status = client_open(options, &client, err);
    if (status != STATUS_OK) return status;
    struct waiting waiting = {.show = show};
    load_bar_init(&waiting.bar);
    const struct watch_request request = {.interval_ms = WATCH_INTERVAL_MS};
    status = client_watch(client, &request, on_snapshot, &waiting, err);
    load_bar_finish(&waiting.bar);
    client_close(&client);
    /* The last snapshot ended the stream by our own wish. */
    return waiting.ready ? STATUS_OK : status;
}
