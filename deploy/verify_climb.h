/* The ladder of `espalier verify`: what a service that runs is asked, in this order,
 *
 *     ranks ─ capacity ─ cache ─ tokens ─ request ─ attention ─ latency ─ errors
 *
 * by an ordinary client. Without ranks that answer, of a service that is gone, or after an
 * interrupt nothing more is asked; any other failure leaves the rest of the ladder to be climbed,
 * so that one run says all there is to say.
 *
 * The long prompt is the same for every run of one length: what an earlier run left in the cache is
 * looked at first, then forgotten, so that times are those of a prompt that is computed.
 */
#ifndef ESPALIER_VERIFY_CLIMB_H
#define ESPALIER_VERIFY_CLIMB_H

#include "client.h"
#include "run_dir.h"
#include "verify_limits.h"
#include "verify_report.h"

struct verify_options {
    struct verify_limits limits;
    uint32_t context_tok;       /* 0: what the service promises */
    const char *tokens_path;    /* what is recorded */
    bool tokens_must_be_there;  /* somebody has said where: nothing recorded is no success */
    const char *record_path;    /* write it there instead; NULL: compare */
    const struct run_dir *logs; /* NULL: the logs of this group are not here */
    const char *log_dir;        /* NULL: in the run directory */
    bool show_progress;
};

/* Fills the report; what goes wrong is a rung that failed. options and client are borrowed. */
void verify_climb(const struct verify_options *options, const struct client_options *client,
                  struct verify_report *report_out);

#endif
