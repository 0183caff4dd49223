/* A journal (coordinator/journal.h) through the core of this build: the same events must come to
 * the same effects. */
#ifndef ESPALIER_SIM_REPLAY_H
#define ESPALIER_SIM_REPLAY_H

#include <stdbool.h>

/* model_path: where the vocabulary lies; NULL: where the journal says, and for a journal of the
 * simulator its own. Prints what it does; returns an exit code. */
int sim_replay(const char *path, const char *model_path, bool verbose);

#endif
