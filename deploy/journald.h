/* What systemd's journal holds of our units, read through `journalctl`: it alone knows which of the
 * journal's files there are, and who may read them. */
#ifndef ESPALIER_JOURNALD_H
#define ESPALIER_JOURNALD_H

#include "log_scan.h"

/* NOT_FOUND: no journalctl, or it knows no line of ours. UNAVAILABLE: it failed; it has said why.
 * Besides log_scan_read_stream's. */
enum status journald_read(struct log_scan *scan, struct error *err) MUST_USE;

#endif
