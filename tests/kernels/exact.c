/* The sources of the references, included under other names. */
#include "exact.h"

#include <math.h>

#include "simd/f32x16_math.h"

static float simd_expf(float x) {
    float lane[16];
    f32x16_store(lane, f32x16_exp(f32x16_set1(x)));
    return lane[0];
}

#define expf simd_expf

#define swiglu_ref exact_swiglu
#include "swiglu/swiglu_ref.c"

#define moe_route_ref exact_moe_route
#include "moe_route/moe_route_ref.c"

#define moe_experts_ref exact_moe_experts
#include "moe_experts/moe_experts_ref.c"

#define mla_tree_ref exact_mla_tree
#include "mla_tree/mla_tree_ref.c"

#define attend           expanded_attend
#define element          expanded_element
#define mla_expanded_ref exact_mla_expanded
#include "mla_expanded/mla_expanded_ref.c"
#undef attend
#undef element

#define element       gqa_element
#define score         gqa_score
#define attend        gqa_attend
#define gqa_block_ref exact_gqa_block
#include "gqa_block/gqa_block_ref.c"

#define top_tokens_ref exact_top_tokens
#include "top_tokens/top_tokens_ref.c"
