/* What belongs to the programs and is no program: the embedded model with its drafter, and what
 * `espalier verify` compares with. Installed, it lies in share/espalier beside the folder of the
 * programs; else where the programs were built from.
 */
#ifndef ESPALIER_SHIPPED_H
#define ESPALIER_SHIPPED_H

enum shipped { SHIPPED_MODEL, SHIPPED_DRAFTER, SHIPPED_VERIFY_LIMITS, SHIPPED_VERIFY_TOKENS };
#define SHIPPED_COUNT 4u

/* A path, valid until the process ends; whether something is there is for its reader to say. Not
 * for two threads at once. */
const char *shipped_path(enum shipped what);

#endif
