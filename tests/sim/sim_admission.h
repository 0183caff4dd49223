/* Whom admission lets in, judged a second time and from outside: nobody is let in past one that the
 * policy puts first, unless that one waits for a prefix being computed; nobody after the queue's
 * time-out; and never more prompt tokens than --max-prefill-tokens at once.
 *
 * With the longest cached prefix the order lies between two bounds only, for what the cache had
 * when a key was made is not seen here: nobody is let in past one that came earlier by more than
 * all of its own prompt in the cache would weigh. Between them tests/core/test_core_cache.c judges.
 */
#ifndef ESPALIER_SIM_ADMISSION_H
#define ESPALIER_SIM_ADMISSION_H

struct request;
struct request_table;

/* A fresh request begins to wait. */
void sim_admission_known(const struct request *request);

/* A waiting request is about to run, its pages opened. */
void sim_admission_check(struct request_table *table, const struct request *admitted);

#endif
