/* Step plans and results as tables of columns: the part of the codec that both directions between
 * coordinator and worker embed in their messages. For codec_worker.c and tests. */
#ifndef ESPALIER_CODEC_STEP_H
#define ESPALIER_CODEC_STEP_H

#include "message.h"
#include "wire.h"

/* Fill *out with columns from the arena. */
void codec_step_put_plan(struct arena *arena, const struct step_plan *plan,
                         Espalier__StepPlan *out);
void codec_step_put_result(struct arena *arena, const struct step_result *result,
                           Espalier__StepResult *out);

/* Read and judge; faults are left in the reader. */
void codec_step_get_plan(struct wire_reader *reader, const Espalier__StepPlan *in,
                         struct step_plan *plan);
void codec_step_get_result(struct wire_reader *reader, const Espalier__StepResult *in,
                           struct step_result *result);

#endif
