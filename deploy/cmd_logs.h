/* `espalier logs`: the lines of the current boot, or its errors. */
#ifndef ESPALIER_CMD_LOGS_H
#define ESPALIER_CMD_LOGS_H

/* argv[0] is the command's name. Returns the exit code. */
int cmd_logs(int argc, char *const *argv);

#endif
