/* SIGINT and SIGTERM as a flag, for commands that are one blocking call. */
#ifndef ESPALIER_INTERRUPT_H
#define ESPALIER_INTERRUPT_H

/* From now on a first signal sets the flag that is returned; a second one ends the process. */
const int *interrupt_catch(void);

#endif
