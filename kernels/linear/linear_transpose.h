/* Rows become columns of a panel: panel[i][r] is element i of row r, for KERNEL_PANEL rows.
 *
 * Loading turns every weight of the model this way once; done element by element it takes longer
 * than reading the file. Rows from `count` on do not exist and read as `fill`. The source may lie
 * at any address; the panel is aligned to 16 bytes. Values are moved, never looked at.
 */
#ifndef ESPALIER_LINEAR_TRANSPOSE_H
#define ESPALIER_LINEAR_TRANSPOSE_H

#include <stddef.h>
#include <stdint.h>

void linear_transpose_u8(uint8_t *panel, const void *source, size_t stride_bytes, uint32_t count,
                         uint32_t k);
void linear_transpose_u16(uint16_t *panel, const void *source, size_t stride_bytes, uint32_t count,
                          uint32_t k, uint16_t fill);
void linear_transpose_u32(uint32_t *panel, const void *source, size_t stride_bytes, uint32_t count,
                          uint32_t k);

#endif
