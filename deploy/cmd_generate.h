/* `espalier generate`: complete one prompt and stream the text. */
#ifndef ESPALIER_CMD_GENERATE_H
#define ESPALIER_CMD_GENERATE_H

/* argv[0] is the command's name. Returns the exit code. */
int cmd_generate(int argc, char *const *argv);

#endif
