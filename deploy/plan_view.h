/* How `espalier plan` shows its answers: for people, and as JSON. */
#ifndef ESPALIER_PLAN_VIEW_H
#define ESPALIER_PLAN_VIEW_H

#include "plan_calibrate.h"
#include "plan_case.h"

struct plan_view {
    const struct plan_case *plan_case;
    const char *model_path;
    const struct plan_calibration *calibration; /* NULL: none */
    const struct plan_want *want;               /* NULL: none */
    const struct plan_answer *answer;           /* to want */
};

void plan_view_print(const struct plan_view *view);
void plan_view_print_json(const struct plan_view *view);

#endif
