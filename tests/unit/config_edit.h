/* Configs for tests: a good one with a few fields changed. Failures are cmocka assertions. */
#ifndef ESPALIER_CONFIG_EDIT_H
#define ESPALIER_CONFIG_EDIT_H

struct json_object;

/* Apply edits "path=JSON" to a config: path is keys joined by '/', JSON a value or "-" to delete.
 * Edits are separated by ';'. */
void config_edit(struct json_object *root, const char *edits);

#endif
