/* `espalier chat`: talk to the model, a line a turn. */
#ifndef ESPALIER_CMD_CHAT_H
#define ESPALIER_CMD_CHAT_H

/* argv[0] is the command's name. Returns the exit code. */
int cmd_chat(int argc, char *const *argv);

#endif
