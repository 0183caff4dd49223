/* What an examination asks and finds, as codec.h's messages and inside those between coordinator
 * and worker. For codec_worker.c. */
#ifndef ESPALIER_CODEC_EXAMINE_H
#define ESPALIER_CODEC_EXAMINE_H

#include "message.h"
#include "wire.h"

Espalier__ExamineReport codec_examine_put_report(const struct examine_report *report);
Espalier__ControlExamine codec_examine_put_order(const struct control_examine *order);

/* Read and judge; faults are left in the reader. in: NULL gives an empty report. */
struct examine_report codec_examine_get_report(struct wire_reader *reader,
                                               const Espalier__ExamineReport *in);
struct control_examine codec_examine_get_order(struct wire_reader *reader,
                                               const Espalier__ControlExamine *in);

#endif
