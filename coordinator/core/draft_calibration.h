/* How often guesses come true, against how often their sources say they will.
 *
 * Whenever a walk has reached a guess's parent, the guess has been put to the test. Guesses of one
 * source and class (its positions; its lengths of match) share a factor: hits observed over hits
 * predicted, both fading, from a belief that counts as many tests as it takes to be sure of it.
 * Fading goes on while nothing is tested, so a source that was given up is tried again.
 * Probabilities times their factor are what trees and budgets are made from. A value; one owner.
 */
#ifndef ESPALIER_DRAFT_CALIBRATION_H
#define ESPALIER_DRAFT_CALIBRATION_H

#include <stdbool.h>

#include "draft_tree.h"

#define DRAFT_CLASSES 32u

struct draft_calibration {
    double predicted[DRAFT_SOURCE_COUNT][DRAFT_CLASSES];
    double observed[DRAFT_SOURCE_COUNT][DRAFT_CLASSES];
};

void draft_calibration_init(struct draft_calibration *calibration);

/* What a probability is multiplied with; the product counts as at most 1. */
double draft_calibration_factor(const struct draft_calibration *calibration,
                                enum draft_source source, uint32_t class);

/* A guess was put to the test. */
void draft_calibration_take(struct draft_calibration *calibration, const struct draft_node *node,
                            bool hit);

/* A step has passed. */
void draft_calibration_fade(struct draft_calibration *calibration);

#endif
