#include "draft_calibration.h"

#include "base/check.h"

#define BELIEF 8.0           /* tests that the first factor counts as */
#define FADE   (1.0 / 512.0) /* of what was seen, a step */

/* What guesses are worth until it is seen. A block's marginals know nothing of a path that has left
 * the likeliest tokens (the upper half of its classes); what stood behind a few tokens need not do
 * so again, and the more of them match, the likelier it does (its classes are lengths). */
static double first_factor(enum draft_source source, uint32_t class) {
    if (source == DRAFT_BLOCK) return class < DRAFT_CLASSES / 2 ? 0.8 : 0.4;
    double length = class % (DRAFT_CLASSES / 2);
    return length / (length + 2);
}

void draft_calibration_init(struct draft_calibration *calibration) {
    *calibration = (struct draft_calibration){.predicted = {{0}}};
}

double draft_calibration_factor(const struct draft_calibration *calibration,
                                enum draft_source source, uint32_t class) {
    CHECK(source < DRAFT_SOURCE_COUNT && class < DRAFT_CLASSES);
    return (first_factor(source, class) * BELIEF + calibration->observed[source][class]) /
           (BELIEF + calibration->predicted[source][class]);
}

void draft_calibration_take(struct draft_calibration *calibration, const struct draft_node *node,
                            bool hit) {
    CHECK(node->source < DRAFT_SOURCE_COUNT && node->class < DRAFT_CLASSES);
    calibration->predicted[node->source][node->class] += (double)node->stated;
    calibration->observed[node->source][node->class] += hit;
}

void draft_calibration_fade(struct draft_calibration *calibration) {
    for (uint32_t source = 0; source < DRAFT_SOURCE_COUNT; source++)
        for (uint32_t class = 0; class < DRAFT_CLASSES; class ++) {
            calibration->predicted[source][class] *= 1 - FADE;
            calibration->observed[source][class] *= 1 - FADE;
        }
}
