/* `espalier flush`: make a group forget cached prefixes. */
#ifndef ESPALIER_CMD_FLUSH_H
#define ESPALIER_CMD_FLUSH_H

/* argv[0] is the command's name. Returns the exit code. */
int cmd_flush(int argc, char *const *argv);

#endif
