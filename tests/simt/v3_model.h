/* A tiny model with what the embedded one lacks, as DeepSeek-V3 has it: every projection in FP8
 * with blocks of scales, latents of 512 + 64, YaRN, experts in groups chosen by a biased router.
 * Random weights, but routers that are never near a tie; the embedded model's tokens. */
#ifndef ESPALIER_V3_MODEL_H
#define ESPALIER_V3_MODEL_H

/* As a new folder, which folder_remove of tensor_store.h takes away. */
void v3_model_write(char folder_out[64]);

#endif
