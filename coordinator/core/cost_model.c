#include "cost_model.h"

#define TERMS         COST_MODEL_TERMS
#define STEPS_ENOUGH  16u
#define SPREAD_FIRST  1e6
#define LOOKS_UNIT    1024.0
#define DRAWING_NEW   0.125 /* weight of the newest step among its like */
#define DRAWING_TIMES 3u    /* steps of a size until it is known */
#define DRAWING_MOST  4     /* of what was known: a step counts for no more */
#define DRAWING_KEPT  2048u /* steps; one that was slow by chance is tried again then */

/* How much a coefficient may have changed since the last step, against the noise of one step: a
 * step's own part about as much as that of the rows and looks of a usual chunk. */
static const double drift[TERMS] = {1e-3, 1e-3 / (256.0 * 256.0), 1e-3 / (256.0 * 256.0)};

static void terms_of(struct cost_model_step step, double *term) {
    term[0] = 1;
    term[1] = step.rows;
    term[2] = (double)step.looks / LOOKS_UNIT;
}

void cost_model_init(struct cost_model *model) {
    *model = (struct cost_model){.steps = 0};
    for (uint32_t i = 0; i < TERMS; i++)
        model->spread[i][i] = SPREAD_FIRST;
}

static double predict(const struct cost_model *model, const double *term) {
    double ns = 0;
    for (uint32_t i = 0; i < TERMS; i++)
        ns += (model->weight[i] > 0 ? model->weight[i] : 0) * term[i];
    return ns;
}

void cost_model_take(struct cost_model *model, struct cost_model_step step, uint64_t ns) {
    double term[TERMS], spread_term[TERMS], error = (double)ns, scale = 1;
    terms_of(step, term);
    for (uint32_t i = 0; i < TERMS; i++) {
        spread_term[i] = 0;
        for (uint32_t j = 0; j < TERMS; j++)
            spread_term[i] += model->spread[i][j] * term[j];
        scale += term[i] * spread_term[i];
        error -= model->weight[i] * term[i];
    }
    for (uint32_t i = 0; i < TERMS; i++) {
        model->weight[i] += spread_term[i] / scale * error;
        for (uint32_t j = 0; j < TERMS; j++)
            model->spread[i][j] -= spread_term[i] * spread_term[j] / scale;
        model->spread[i][i] += drift[i];
    }
    if (model->steps < STEPS_ENOUGH) model->steps++;
}

uint64_t cost_model_of(const struct cost_model *model, struct cost_model_step step) {
    double term[TERMS];
    if (model->steps < STEPS_ENOUGH) return 0;
    terms_of(step, term);
    return (uint64_t)predict(model, term);
}

static struct cost_model_step with_rows(struct cost_model_step step, uint32_t committed,
                                        uint32_t rows) {
    uint64_t looks = (uint64_t)rows * committed + (uint64_t)rows * (rows + 1) / 2;
    return (struct cost_model_step){.rows = step.rows + rows, .looks = step.looks + looks};
}

uint32_t cost_model_rows(const struct cost_model *model, struct cost_model_step step,
                         uint32_t committed, uint32_t row_max, uint64_t target_ns) {
    if (model->steps < STEPS_ENOUGH) return row_max;
    uint32_t fits = 0, above = row_max + 1; /* the cost rises with the rows */
    while (above - fits > 1) {
        uint32_t middle = fits + (above - fits) / 2;
        if (cost_model_of(model, with_rows(step, committed, middle)) <= target_ns)
            fits = middle;
        else
            above = middle;
    }
    return fits;
}

/* Sizes that are remembered apart: each up to its number of rows. */
static const uint32_t size_max[COST_MODEL_SIZES] = {1,  2,  3,  4,  5,  6,  8,   10,  12,  16,
                                                    20, 24, 32, 40, 48, 64, 128, 256, 512, 1024};

static bool is_fresh(const struct cost_model *model, uint32_t size) {
    return model->drawing_count - model->drawing[size].seen < DRAWING_KEPT;
}

static bool is_known(const struct cost_model *model, uint32_t size) {
    return model->drawing[size].times == DRAWING_TIMES && is_fresh(model, size);
}

/* The least of the first few, then a mean to which no step adds more than several times as much: a
 * machine that others use is slow now and then. */
void cost_model_take_drawing(struct cost_model *model, struct cost_model_step step, uint64_t ns) {
    uint32_t size = 0;
    model->drawing_count++;
    while (size < COST_MODEL_SIZES && size_max[size] < step.rows)
        size++;
    if (size == COST_MODEL_SIZES) return;
    struct cost_model_size *of = &model->drawing[size];
    double own_ns = (double)ns, newest = DRAWING_NEW;
    if (!is_fresh(model, size)) of->times = 0;
    if (of->times > 0 && own_ns > DRAWING_MOST * of->ns) own_ns = DRAWING_MOST * of->ns;
    if (of->times < DRAWING_TIMES) newest = of->times == 0 || own_ns < of->ns ? 1 : 0;
    of->rows += newest * (step.rows - of->rows);
    of->looks += newest * ((double)step.looks - of->looks);
    of->ns += newest * (own_ns - of->ns);
    of->seen = model->drawing_count;
    if (of->times < DRAWING_TIMES) of->times++;
}

/* What steps of a size cost with so many looks a row. How much looks cost is known least, so what
 * was measured counts in any case. */
static double size_ns(const struct cost_model *model, uint32_t size, double looks_a_row) {
    const struct cost_model_size *of = &model->drawing[size];
    double look_ns = model->weight[2] > 0 ? model->weight[2] / LOOKS_UNIT : 0;
    double ns = of->ns + look_ns * (looks_a_row * of->rows - of->looks);
    return ns > of->ns / 2 ? ns : of->ns / 2;
}

/* Beyond what is known: free for as many rows as it takes to learn, then by the line. */
static double beyond(const struct cost_model *model, uint32_t size, double rows,
                     double looks_a_row) {
    double tried = 2 * model->drawing[size].rows + 2, more = rows - model->drawing[size].rows;
    double row_ns = model->weight[1] > 0 ? model->weight[1] : 0;
    if (model->weight[2] > 0) row_ns += model->weight[2] * looks_a_row / LOOKS_UNIT;
    return size_ns(model, size, looks_a_row) + (rows > tried ? row_ns * more : 0);
}

static double between(const struct cost_model *model, uint32_t below, uint32_t above, double rows,
                      double looks_a_row) {
    double rows_a = model->drawing[below].rows, rows_b = model->drawing[above].rows;
    double ns_a = size_ns(model, below, looks_a_row), ns_b = size_ns(model, above, looks_a_row);
    return rows_b > rows_a ? ns_a + (rows - rows_a) / (rows_b - rows_a) * (ns_b - ns_a) : ns_a;
}

double cost_model_of_drawing(const struct cost_model *model, struct cost_model_step step) {
    if (model->steps < STEPS_ENOUGH || step.rows == 0) return 0;
    double rows = step.rows, looks_a_row = (double)step.looks / rows;
    uint32_t none = COST_MODEL_SIZES, below = none, above = none;
    for (uint32_t size = 0; size < COST_MODEL_SIZES; size++) {
        if (!is_known(model, size)) continue;
        if (model->drawing[size].rows <= rows) below = size;
        if (model->drawing[size].rows >= rows && above == none) above = size;
    }
    if (below == none && above == none) return (double)cost_model_of(model, step);
    if (below == none) return size_ns(model, above, looks_a_row);
    if (above == none) return beyond(model, below, rows, looks_a_row);
    return between(model, below, above, rows, looks_a_row);
}
