#include "checkpoint.h"

#include "base/hash.h"

enum status checkpoint_open(const char *directory, uint32_t tp, struct checkpoint *checkpoint_out,
                            struct error *err) {
    enum status status = model_spec_load(directory, &checkpoint_out->spec, err);
    if (status != STATUS_OK) return error_wrap(err, status, "--model-path");
    status = model_spec_check_tp(&checkpoint_out->spec, tp, err);
    if (status != STATUS_OK) return status;
    status = safetensors_open(directory, &checkpoint_out->tensors, err);
    if (status != STATUS_OK) return error_wrap(err, status, "--model-path");
    checkpoint_out->fingerprint = hash_chain(model_spec_fingerprint(&checkpoint_out->spec),
                                             safetensors_fingerprint(checkpoint_out->tensors));
    return STATUS_OK;
}

void checkpoint_close(struct checkpoint *checkpoint) {
    safetensors_close(&checkpoint->tensors);
}

enum status checkpoint_open_drafter(const char *directory, const struct model_spec *target,
                                    uint32_t tp, struct checkpoint_drafter *drafter_out,
                                    struct error *err) {
    enum status status = drafter_spec_load(directory, target, &drafter_out->spec, err);
    if (status == STATUS_OK) status = drafter_spec_check_tp(&drafter_out->spec, tp, err);
    if (status == STATUS_OK) status = safetensors_open(directory, &drafter_out->tensors, err);
    if (status != STATUS_OK) return status;
    drafter_out->fingerprint = hash_chain(drafter_spec_fingerprint(&drafter_out->spec),
                                          safetensors_fingerprint(drafter_out->tensors));
    return STATUS_OK;
}

void checkpoint_close_drafter(struct checkpoint_drafter *drafter) {
    safetensors_close(&drafter->tensors);
}
