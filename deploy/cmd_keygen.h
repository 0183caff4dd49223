/* `espalier keygen`: keys for a group that is reached over TCP. */
#ifndef ESPALIER_CMD_KEYGEN_H
#define ESPALIER_CMD_KEYGEN_H

/* argv[0] is the command's name. Returns the exit code. */
int cmd_keygen(int argc, char *const *argv);

#endif
