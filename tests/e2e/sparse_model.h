/* A checkpoint of a gigabyte that takes no room on disk: zeros behind a true header. It computes
 * nothing of interest, and takes long enough to load to be looked at meanwhile: F16 becomes f32. */
#ifndef ESPALIER_SPARSE_MODEL_H
#define ESPALIER_SPARSE_MODEL_H

/* Put it into an existing, empty directory. */
void sparse_model_make(const char *directory);

#endif
