/* What a service manager is told: systemd's notification protocol (sd_notify(3)), a line in a
 * datagram to the socket that $NOTIFY_SOCKET names. Without that variable nothing is sent.
 *
 * READY=1 once what the unit stands for answers; WATCHDOG=1 as long as there is progress, so that
 * a process that lives and stands still is restarted, too (WatchdogSec= of the unit).
 */
#ifndef ESPALIER_SERVICE_NOTIFY_H
#define ESPALIER_SERVICE_NOTIFY_H

#include <stdbool.h>

/* state: one or more lines "NAME=VALUE". False: nobody asked, or it could not be sent. */
bool service_notify(const char *state);

#endif
