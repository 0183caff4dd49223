/* `espalier status`: what a group does now, as a table or as JSON. */
#ifndef ESPALIER_CMD_STATUS_H
#define ESPALIER_CMD_STATUS_H

/* argv[0] is the command's name. Returns the exit code. */
int cmd_status(int argc, char *const *argv);

#endif
