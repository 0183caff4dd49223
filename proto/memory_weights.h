/* What a rank's part of the weights weighs, module by module. */
#ifndef ESPALIER_MEMORY_WEIGHTS_H
#define ESPALIER_MEMORY_WEIGHTS_H

#include "memory_plan.h"

/* Fills the weight lines but the drafter's, and counts the model's parameters. All ranks weigh the
 * same. Cost: some look-ups a tensor. */
enum status memory_weights_add(const struct memory_request *request, struct memory_plan *plan,
                               struct error *err) MUST_USE;

#endif
