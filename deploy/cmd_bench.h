/* `espalier bench`: put a load on a group and say how fast it was, as its callers saw it. */
#ifndef ESPALIER_CMD_BENCH_H
#define ESPALIER_CMD_BENCH_H

/* argv[0] is the command's name. Returns the exit code. */
int cmd_bench(int argc, char *const *argv);

#endif
