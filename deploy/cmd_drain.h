/* `espalier drain`: let a group finish what runs, and end. */
#ifndef ESPALIER_CMD_DRAIN_H
#define ESPALIER_CMD_DRAIN_H

/* argv[0] is the command's name. Returns the exit code. */
int cmd_drain(int argc, char *const *argv);

#endif
