/* The reference dot product, for the reference ops that are made of it. */
#ifndef ESPALIER_LINEAR_REF_H
#define ESPALIER_LINEAR_REF_H

#include "linear/linear.h"

/* dot_s of linear.h for output n and the segment [k_begin, k_end) of x [K]. */
float linear_ref_dot(const struct linear_weight *weight, enum kernel_dtype activation,
                     const float *x, size_t n, size_t k_begin, size_t k_end);

#endif
