#include "load_bar.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

#define BAR_CELLS        10u /* what 80 columns leave beside the figures */
#define PRINT_EVERY_NS   (5 * NS_PER_S)
#define TERMINAL_COLUMNS 80u

void load_bar_init(struct load_bar *bar) {
    *bar = (struct load_bar){.terminal = isatty(STDERR_FILENO), .begin_ns = clock_now_ns()};
}

static unsigned terminal_columns(void) {
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return TERMINAL_COLUMNS;
    return size.ws_col;
}

struct sum {
    uint64_t bytes, bytes_total;
    uint32_t loaded, known;
};

static struct sum sum_up(const struct snapshot *snapshot) {
    struct sum sum = {0};
    for (uint32_t i = 0; i < snapshot->rank_count; i++) {
        const struct rank_status *rank = &snapshot->rank[i];
        sum.bytes += rank->load_bytes;
        sum.bytes_total += rank->load_bytes_total;
        sum.known += rank->state == RANK_LOADING || rank->state == RANK_LOADED ||
                     rank->state == RANK_READY;
        sum.loaded += rank->state == RANK_LOADED || rank->state == RANK_READY;
    }
    return sum;
}

/* The rank that is furthest behind in its self-test; NULL: none is in one. */
static const struct rank_status *find_tested(const struct snapshot *snapshot) {
    const struct rank_status *found = NULL;
    for (uint32_t i = 0; i < snapshot->rank_count; i++) {
        const struct rank_status *rank = &snapshot->rank[i];
        if (rank->self_test == SELF_TEST_NONE) continue;
        bool behind = found && (rank->self_test < found->self_test ||
                                (rank->self_test == found->self_test &&
                                 rank->self_test_percent < found->self_test_percent));
        if (!found || behind) found = rank;
    }
    return found;
}

void load_bar_format(const struct snapshot *snapshot, uint64_t elapsed_ns, unsigned columns,
                     char *out, uint32_t out_bytes) {
    struct sum sum = sum_up(snapshot);
    if (sum.bytes_total == 0 || sum.known == 0) {
        snprintf(out, out_bytes, "waiting for workers: %u of %u", sum.known, snapshot->tp);
        return;
    }
    const struct rank_status *tested = find_tested(snapshot);
    if (tested && sum.bytes >= sum.bytes_total) {
        snprintf(out, out_bytes, "self-test: %s, %u %% on rank %u; %u/%u ranks loaded",
                 self_test_name(tested->self_test), tested->self_test_percent, tested->rank,
                 sum.loaded, snapshot->tp);
        return;
    }
    double share = (double)sum.bytes / (double)sum.bytes_total;
    if (share > 1) share = 1;
    char cells[BAR_CELLS + 1];
    for (uint32_t i = 0; i < BAR_CELLS; i++)
        cells[i] = (double)i < share * BAR_CELLS ? '#' : '-';
    cells[BAR_CELLS] = '\0';
    double seconds = (double)elapsed_ns / 1e9;
    double rate = seconds > 0 ? (double)sum.bytes / seconds : 0;
    double left = rate > 0 ? (double)(sum.bytes_total - sum.bytes) / rate : 0;
    if (sum.bytes > sum.bytes_total) left = 0;
    bool big = sum.bytes_total > UINT64_C(10000000000);
    double unit = big ? 1e9 : 1e6;
    snprintf(out, out_bytes,
             "loading [%s] %3.0f %%  %.1f/%.1f %s  %.1f MB/s  %u:%02u left  %u/%u ranks", cells,
             share * 100, (double)sum.bytes / unit, (double)sum.bytes_total / unit,
             big ? "GB" : "MB", rate / 1e6, (unsigned)(left / 60), (unsigned)left % 60, sum.loaded,
             snapshot->tp);
    if (columns < out_bytes) out[columns] = '\0';
}

void load_bar_show(struct load_bar *bar, const struct snapshot *snapshot) {
    int64_t now_ns = clock_now_ns();
    if (!bar->terminal && now_ns - bar->printed_ns < PRINT_EVERY_NS && bar->printed_ns != 0) return;
    char text[256];
    unsigned columns = bar->terminal ? terminal_columns() - 1 : sizeof text - 1;
    load_bar_format(snapshot, (uint64_t)(now_ns - bar->begin_ns), columns, text, sizeof text);
    /* The cursor goes back: a log line that comes in between covers the bar. */
    if (bar->terminal)
        fprintf(stderr, "\r\033[K%s\r", text);
    else
        fprintf(stderr, "%s\n", text);
    fflush(stderr);
    bar->drawn = true;
    bar->printed_ns = now_ns;
}

void load_bar_finish(struct load_bar *bar) {
    if (bar->terminal && bar->drawn) fprintf(stderr, "\r\033[K");
    fflush(stderr);
    bar->drawn = false;
}
