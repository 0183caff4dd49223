/* `espalier plan`: what a rank will hold, before anything is loaded. */
#ifndef ESPALIER_CMD_PLAN_H
#define ESPALIER_CMD_PLAN_H

/* argv[0] is the command's name. Returns the exit code. */
int cmd_plan(int argc, char *const *argv);

#endif
