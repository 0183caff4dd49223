/* `espalier resize`: another size of a group's token pool, or of its batch, while it serves. */
#ifndef ESPALIER_CMD_RESIZE_H
#define ESPALIER_CMD_RESIZE_H

int cmd_resize(int argc, char *const *argv);

#endif
