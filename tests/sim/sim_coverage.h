/* Which states and transitions the seeds so far have reached, as seen from outside: the linker
 * sends the core's calls of request_open, request_set_state and the roster's functions through
 * here. The legal transitions are written down a second time, from the diagrams; one that the
 * diagrams do not have is a failure, and so is one that no seed reaches.
 */
#ifndef ESPALIER_SIM_COVERAGE_H
#define ESPALIER_SIM_COVERAGE_H

#include <stdbool.h>

/* A new core: nothing is known of its states. */
void sim_coverage_begin(void);

/* Print the table; false where a legal transition was not reached. */
bool sim_coverage_report(void);

#endif
