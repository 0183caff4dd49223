/* A checkpoint folder as the coordinator and its workers look at it before any weight is read:
 * the model's description, the tensors' headers, and one number that says which model it is. A
 * group forms only of processes whose numbers agree. */
#ifndef ESPALIER_CHECKPOINT_H
#define ESPALIER_CHECKPOINT_H

#include "drafter_spec.h"
#include "model_spec.h"
#include "safetensors.h"

struct checkpoint {
    struct model_spec spec;
    struct safetensors *tensors; /* owned */
    uint64_t fingerprint;        /* of spec and headers */
};

/* Reads config.json and all headers, and checks that tp ranks can share the model. Errors are
 * those of model_spec_load, model_spec_check_tp and safetensors_open, with the flag's name. */
enum status checkpoint_open(const char *directory, uint32_t tp, struct checkpoint *checkpoint_out,
                            struct error *err) MUST_USE;
void checkpoint_close(struct checkpoint *checkpoint);

/* The drafter's folder, likewise. */
struct checkpoint_drafter {
    struct drafter_spec spec;
    struct safetensors *tensors; /* owned */
    uint64_t fingerprint;
};

/* target: the model it drafts for. Errors are those of drafter_spec_load, drafter_spec_check_tp and
 * safetensors_open. */
enum status checkpoint_open_drafter(const char *directory, const struct model_spec *target,
                                    uint32_t tp, struct checkpoint_drafter *drafter_out,
                                    struct error *err) MUST_USE;
void checkpoint_close_drafter(struct checkpoint_drafter *drafter);

#endif
