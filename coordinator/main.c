/* espalier-coordinator: decides what a group of workers computes, and answers its clients. */
#include <stdio.h>

#include "checkpoint.h"
#include "coordinator_config.h"
#include "loop.h"
#include "options.h"
#include "process.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

/* A connection and a pidfd for each of worker_link's workers, and room for ourselves. */
#define FILES_NEEDED 256u

static int exit_code_of(enum status status) {
    switch (status) {
    case STATUS_OK: return EXIT_CODE_OK;
    case STATUS_ALREADY_EXISTS:
    case STATUS_UNAVAILABLE:
    case STATUS_RESOURCE_EXHAUSTED: return EXIT_CODE_TEMPORARY;
    case STATUS_PERMISSION_DENIED: return EXIT_CODE_PERMISSION;
    default: return EXIT_CODE_CONFIG;
    }
}

static enum status serve(const struct loop_options *options, int *exit_code_out,
                         struct error *err) {
    struct loop *loop;
    enum status status = loop_open(options, &loop, err);
    if (status != STATUS_OK) return status;
    *exit_code_out = loop_run(loop);
    loop_close(&loop);
    return STATUS_OK;
}

static enum status load_vocab(const char *directory, struct vocab **vocab_out, struct error *err) {
    char model_path[4096], config_path[4096];
    snprintf(model_path, sizeof model_path, "%s/tiktoken.model", directory);
    snprintf(config_path, sizeof config_path, "%s/tokenizer_config.json", directory);
    return vocab_load(model_path, config_path, vocab_out, err);
}

/* The marks that end a turn or a document end an answer whatever the config lists: published
 * configs name one of the two, and not always the one that the model draws. */
static void add_stop_token(struct model_spec *spec, const struct vocab *vocab, const char *name) {
    uint32_t token = vocab_special(vocab, name);
    if (token == VOCAB_NO_ID || spec->stop_token_count == MODEL_STOP_TOKENS_MAX) return;
    for (uint32_t i = 0; i < spec->stop_token_count; i++)
        if (spec->stop_token[i] == token) return;
    spec->stop_token[spec->stop_token_count++] = token;
}

/* Everything that a command line can get wrong is found here, before anyone can connect. */
static enum status run(struct coordinator_config *config, const char *boot_id, int *exit_code_out,
                       struct error *err) {
    struct checkpoint checkpoint;
    enum status status = checkpoint_open(config->model_path, config->tp, &checkpoint, err);
    if (status != STATUS_OK) return status;
    struct vocab *vocab = NULL;
    status = coordinator_config_resolve(config, &checkpoint, err);
    if (status == STATUS_OK) status = load_vocab(config->model_path, &vocab, err);
    if (status == STATUS_OK) {
        add_stop_token(&checkpoint.spec, vocab, "[EOS]");
        add_stop_token(&checkpoint.spec, vocab, "<|im_end|>");
        struct tokenizer *tokenizer = tokenizer_create(vocab);
        const struct loop_options options = {.config = config,
                                             .spec = &checkpoint.spec,
                                             .tokenizer = tokenizer,
                                             .model_fingerprint = checkpoint.fingerprint,
                                             .boot_id = boot_id};
        status = serve(&options, exit_code_out, err);
        tokenizer_destroy(tokenizer);
        vocab_destroy(vocab);
    }
    checkpoint_close(&checkpoint);
    return status;
}

int main(int argc, char **argv) {
    process_fill_standard_streams();
    struct coordinator_config config;
    int exit_code;
    if (!coordinator_config_parse(argc, argv, &config, &exit_code)) return exit_code;
    char boot_id[BOOT_ID_LEN + 1];
    log_make_boot_id(boot_id);
    log_init("coordinator", LOG_RANK_NONE, boot_id);
    log_set_level(config.log_level);
    process_let_writes_fail();
    struct error err;
    enum status status = process_require_files(FILES_NEEDED, &err);
    if (status == STATUS_OK) status = run(&config, boot_id, &exit_code, &err);
    if (status != STATUS_OK)
        return options_refuse("espalier-coordinator", exit_code_of(status), &err);
    return exit_code;
}
