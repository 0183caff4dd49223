#include "prefill.h"

#include "base/check.h"

static uint32_t min(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

struct prefill_budget prefill_begin(uint32_t tok_budget, uint32_t first_tok, bool is_alone) {
    return (struct prefill_budget){
        .tok_left = tok_budget,
        .tok_kept = is_alone || first_tok < tok_budget ? 0 : tok_budget / 4,
    };
}

uint32_t prefill_cut(struct prefill_budget *budget, const struct request *request,
                     uint32_t tok_max) {
    CHECK(request->state == REQUEST_PREFILL && request_planned(request) < request->prefill_end);
    uint32_t wanted = request->prefill_end - request_planned(request);
    bool ends = wanted <= budget->tok_left && wanted <= tok_max;
    uint32_t rows = ends ? wanted : min(budget->tok_left - budget->tok_kept, tok_max);
    budget->tok_left -= rows;
    budget->tok_kept = min(budget->tok_kept, budget->tok_left);
    return rows;
}
