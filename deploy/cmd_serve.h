/* `espalier serve`: start a group on this machine and keep it running. */
#ifndef ESPALIER_CMD_SERVE_H
#define ESPALIER_CMD_SERVE_H

/* argv[0] is the command's name. Returns the exit code. */
int cmd_serve(int argc, char *const *argv);

#endif
