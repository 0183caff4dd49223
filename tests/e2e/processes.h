/* Real processes for tests: started with a deadline, seen to their end by their own pid, and dead
 * with the test whatever happens to it. Uses nothing of what it tests. */
#ifndef ESPALIER_PROCESSES_H
#define ESPALIER_PROCESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define PROCESSES_OUTPUT_MAX  (256u << 10)
#define PROCESSES_PATIENCE_MS 60000 /* a test that waits longer has failed */

/* How a program ended, and what it said. */
struct processes_result {
    int exit_code; /* -signal where it was killed by one */
    char out[PROCESSES_OUTPUT_MAX], err[PROCESSES_OUTPUT_MAX];
};

/* `program` (espalier, espalier-coordinator, espalier-worker) of this build with arguments, ended
 * by NULL. input: its standard input, NULL for none. Fails the test where it does not end. */
void processes_run(struct processes_result *result_out, const char *input, const char *program,
                   const char *const *arguments);

/* The same with variables ("NAME=VALUE", ended by NULL) added to the environment. */
void processes_run_with(struct processes_result *result_out, const char *const *variables,
                        const char *program, const char *const *arguments);

/* What a program meets where it runs; zeros are what the test itself has. */
struct processes_surroundings {
    const char *const *variables; /* "NAME=VALUE", ended by NULL */
    const char *input;            /* its standard input */
    const char *out_path;         /* where standard output goes instead of result->out */
    const char *err_path;         /* where standard error goes instead of result->err */
    long files_max;               /* RLIMIT_NOFILE */
    long file_bytes_max;          /* RLIMIT_FSIZE */
    bool no_override; /* where the test is root: without its right to read what modes forbid. The
                       * user stays root, who alone may reach the programs below a home of mode 0700
                       */
};
void processes_run_in(struct processes_result *result_out,
                      const struct processes_surroundings *surroundings, const char *program,
                      const char *const *arguments);

/* Start it and go on; what it says goes to the file `log` (appended). */
pid_t processes_start(const char *log, const char *program, const char *const *arguments);

/* The exit code (-signal) of a started one; fails the test where it does not end in time. */
int processes_wait(pid_t pid);
bool processes_is_running(pid_t pid);

/* Kill what was started and not waited for: a test's tear-down. */
void processes_kill_all(void);

/* How many processes of this machine have `text` among their arguments, zombies aside. */
int processes_count(const char *text);

/* Wait until there are none; how long it took in ms, or -1 where it was too long. */
int processes_wait_gone(const char *text);

/* A new directory of mode 0700 in /tmp; removed with all in it by processes_remove_dir. */
void processes_make_dir(char path_out[64]);
void processes_remove_dir(const char *path);

/* Entries in the directory; -1 where it is not there. */
int processes_dir_entries(const char *path);

/* The whole file as text, cut at bytes - 1; "" where it is not there. */
void processes_read_file(const char *path, char *out, size_t bytes);

/* Wait until the file contains text; fails the test where it never does. */
void processes_wait_for(const char *path, const char *text);

/* What stands behind `key=` in a ready file of run_dir ("coordinator", "worker-1"), cut at
 * bytes - 1; "" where there is no such file, or no such key. */
void processes_ready_value(const char *run_dir, const char *who, const char *key, char *out,
                           size_t bytes);
long processes_ready_pid(const char *run_dir, const char *who); /* 0 for none */

void processes_sleep_ms(int ms);
long processes_now_ms(void);

#endif
