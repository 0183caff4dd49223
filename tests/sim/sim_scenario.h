/* What a seed is: options, weather, calls and faults. Sizes are small on purpose: limits are met
 * often, and a history is short enough to read. */
#ifndef ESPALIER_SIM_SCENARIO_H
#define ESPALIER_SIM_SCENARIO_H

#include <stdint.h>

struct sim_cluster;

/* Options and weather, before the core is created. */
void sim_scenario_choose(struct sim_cluster *cluster);

/* Put the calls, the faults, perhaps a drain, and the end of all faults on the agenda. */
void sim_scenario_put(struct sim_cluster *cluster);

/* A fault's time has come. */
void sim_scenario_fault(struct sim_cluster *cluster);

#endif
