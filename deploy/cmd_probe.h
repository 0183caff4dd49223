/* `espalier probe`: is a process well? Exit code 0 or 1, for supervisors. */
#ifndef ESPALIER_CMD_PROBE_H
#define ESPALIER_CMD_PROBE_H

/* argv[0] is the command's name. Returns the exit code. */
int cmd_probe(int argc, char *const *argv);

#endif
