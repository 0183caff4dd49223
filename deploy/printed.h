/* Did standard output take what a command has to say? A file that lacks the answer, since the disk
 * is full, must not look like one. */
#ifndef ESPALIER_PRINTED_H
#define ESPALIER_PRINTED_H

/* exit_code, where all that was printed was taken, or the reader has seen enough; else it says why
 * not, and returns EXIT_CODE_FAILED. To be called as soon as all is printed: errno tells why. */
int printed(const char *program_name, int exit_code);

/* The same where a write has failed, with write_errno. */
int printed_not(const char *program_name, int exit_code, int write_errno);

#endif
