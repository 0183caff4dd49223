/* `espalier verify`: can the service do what it promises? Capacity, bandwidth, latency, errors. */
#ifndef ESPALIER_CMD_VERIFY_H
#define ESPALIER_CMD_VERIFY_H

int cmd_verify(int argc, char *const *argv);

#endif
