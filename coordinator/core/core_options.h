/* What options a core accepts. Each refusal is one line: the flag, what was found, what is
 * accepted.
 */
#ifndef ESPALIER_CORE_OPTIONS_H
#define ESPALIER_CORE_OPTIONS_H

#include <stddef.h>

#include "core.h"

/* INVALID_ARGUMENT. What tables need is computed from options that passed the first check. */
enum status core_options_check(const struct core_options *options, struct error *err) MUST_USE;
enum status core_options_check_memory(size_t memory_bytes, struct error *err) MUST_USE;

#endif
