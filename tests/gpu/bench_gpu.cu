/* How near the roof each kernel runs on a GPU, and whether it computes what the CPU's does there.
 *
 *     bench_gpu check          every kernel against its reference over the cases of tests/kernels
 *                              (check_ops.h), and those that matter against the CPU's at shapes of
 *                              Kimi K2.6; a whole step from a graph against the same launches one
 *                              by one; exit code 1 where one differs
 *     bench_gpu time [LEAST]   one line a kernel and shape, as CSV, and two for a whole step
 *                              (bench_step.h): from a graph, and op by op. Exit code 3 where memory
 *                              gives less than LEAST GB/s: then something else is at work, and no
 *                              line means anything
 *     either with `tiny`       shapes for the emulator
 *
 * Products of many rows by our kernels, and by cuBLASLt if the program was built with it.
 *
 * First the roofs of this device at this moment. A shape is launched several times from one graph,
 * over copies of its weights that together exceed the caches; the best of some runs counts. The
 * share is the time that reading or multiplying alone would take, whichever is longer, over that
 * taken. Rows waste the columns of a product they do not fill: operations are those of the
 * mathematics, not of the tensor cores. */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern "C" {
#include "bench_step.h"
#include "check_ops.h"
#include "kernel.h"
#include "kv_store/kv_store.h"
#include "linear/linear_cublaslt.h"
#include "linear/linear_cuda.h"
#include "mla_tree/mla_tree_cuda.h"
#include "moe_experts/moe_experts_cuda.h"
#include "moe_route/moe_route.h"
#include "roof_cuda.h"
}

#define COLD_BYTES  ((size_t)512 << 20) /* that the launches of a graph touch at least */
#define LAUNCHES    24u                 /* of a graph at most */
#define EXIT_DIFFER 1
#define EXIT_VOID   3

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t error = (call);                                                                \
        if (error != cudaSuccess) {                                                                \
            fprintf(stderr, "bench_gpu: %s: %s\n", #call, cudaGetErrorString(error));              \
            exit(70);                                                                              \
        }                                                                                          \
    } while (0)

/* Kimi K2.6 on one of eight ranks, or something small of the same build. */
struct shape {
    uint32_t experts, topk, dim, width;
    uint32_t heads, latent_dim, rope_dim, q_rank, v_width;
    uint32_t contexts[4], rows[7], many_rows[3];
    size_t pool_bytes;
};
static const struct shape k26 = {384,
                                 8,
                                 7168,
                                 256,
                                 8,
                                 512,
                                 64,
                                 1536,
                                 1024,
                                 {4096, 32768, 131072, 200000},
                                 {1, 2, 4, 8, 16, 32, 64},
                                 {256, 1024, 8192},
                                 (size_t)1408 << 20};
static const struct shape tiny = {12,
                                  2,
                                  128,
                                  32,
                                  2,
                                  128,
                                  32,
                                  64,
                                  64,
                                  {64, 128, 192, 256},
                                  {1, 2, 3, 4, 5, 8, 9},
                                  {256, 257, 258},
                                  (size_t)2 << 20};

struct host_block;
struct bench {
    struct shape shape;
    struct kernel_device device;
    struct kernel_ctx ctx;
    struct linear_cublaslt *cublaslt; /* NULL: the program was built without */
    cudaStream_t stream;
    unsigned char *pool; /* weights and caches, filled with numbers */
    unsigned char *rest; /* everything else, handed out front to back and given back as a whole */
    size_t rest_bytes, rest_used;
    struct host_block *host; /* what a check holds on the host */
    uint32_t launches, runs; /* of a graph, and of its launches */
    double bytes_a_second, flops_a_second;
};

static void *take(struct bench *bench, size_t bytes) {
    void *memory = bench->rest + bench->rest_used;
    bench->rest_used += (bytes + 255) & ~(size_t)255;
    KERNEL_CHECK(bench->rest_used <= bench->rest_bytes);
    return memory;
}

static void wait(struct bench *bench) {
    CHECK(cudaStreamSynchronize(bench->stream));
}

/* Both return when the bytes are there. */
static void upload(struct bench *bench, void *to, const void *from, size_t bytes) {
    CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, bench->stream));
    wait(bench);
}
static void download(struct bench *bench, void *to, const void *from, size_t bytes) {
    CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, bench->stream));
    wait(bench);
}

/* Room for the workspace of the op that is launched next. */
static void give_scratch(struct bench *bench, size_t bytes) {
    bench->ctx.scratch = take(bench, bytes);
    bench->ctx.scratch_bytes = bytes;
}

static uint32_t random_below(uint32_t end) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % end);
}

static float *random_floats(size_t count) {
    float *values = (float *)malloc(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = ((float)random_below(2001) - 1000.0f) * 1e-3f;
    return values;
}

static float *upload_floats(struct bench *bench, size_t count) {
    float *values = random_floats(count);
    float *to = (float *)take(bench, count * sizeof *values);
    upload(bench, to, values, count * sizeof *values);
    free(values);
    return to;
}

/* ============================== calls ========================================================= */

/* A weight somewhere in the pool: copy number `copy` of it. */
static struct linear_weight weight_at(const struct bench *bench, size_t at,
                                      enum linear_format format, uint32_t n, uint32_t k) {
    size_t data_bytes = (linear_data_bytes(format, n, k) + 255) & ~(size_t)255;
    struct linear_weight weight = {};
    weight.data = bench->pool + at;
    weight.scale = format == LINEAR_BF16 ? NULL : bench->pool + at + data_bytes;
    weight.format = format;
    weight.n = n;
    weight.k = k;
    return weight;
}

static size_t weight_bytes(enum linear_format format, uint32_t n, uint32_t k) {
    return (linear_data_bytes(format, n, k) + linear_scale_bytes(format, n, k) + 511) &
           ~(size_t)255;
}

/* Every call is made for several copies of what it reads; `bytes` and `flops` are those of one. */
struct call {
    const char *op, *what;
    uint32_t rows, context;
    uint32_t copies;
    double bytes, flops;
    struct linear_args linear[LAUNCHES];
    struct moe_experts_args moe_experts[LAUNCHES];
    struct mla_tree_args mla_tree[LAUNCHES];
};

static uint32_t copies_of(const struct bench *bench, size_t bytes) {
    size_t copies = COLD_BYTES / bytes + 1, room = bench->shape.pool_bytes / bytes;
    if (copies > room) copies = room;
    return copies < bench->launches ? (uint32_t)copies : bench->launches;
}

static void make_linear(struct bench *bench, struct call *call, enum linear_format format,
                        uint32_t rows, uint32_t n, uint32_t k, enum kernel_dtype activation) {
    size_t bytes = weight_bytes(format, n, k);
    call->op = "linear";
    call->rows = rows;
    call->context = 0;
    call->copies = copies_of(bench, bytes);
    call->bytes = (double)linear_data_bytes(format, n, k) +
                  (double)linear_scale_bytes(format, n, k);
    call->flops = 2.0 * rows * n * k;
    struct linear_args args = {};
    args.x = upload_floats(bench, (size_t)rows * k);
    args.x_stride = k;
    args.y = (float *)take(bench, (size_t)rows * n * sizeof(float));
    args.y_stride = n;
    args.rows = rows;
    args.batch = args.segments = 1;
    args.activation = activation;
    for (uint32_t i = 0; i < call->copies; i++) {
        args.weight = weight_at(bench, i * bytes, format, n, k);
        call->linear[i] = args;
    }
    give_scratch(bench, linear_cuda_plan(&args, &bench->device).scratch_bytes);
}

/* topk different experts a row, ascending; how many are met by all rows. */
static uint32_t route(const struct bench *bench, uint32_t rows, uint32_t *expert) {
    const struct shape *shape = &bench->shape;
    bool *is_met = (bool *)calloc(shape->experts, 1);
    uint32_t met = 0;
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t left = shape->topk;
        for (uint32_t e = 0; e < shape->experts && left > 0; e++) {
            if (random_below(shape->experts - e) >= left) continue;
            *expert++ = e;
            left--;
            met += !is_met[e];
            is_met[e] = true;
        }
    }
    free(is_met);
    return met;
}

static void make_moe_experts(struct bench *bench, struct call *call, uint32_t rows) {
    const struct shape *shape = &bench->shape;
    size_t up_bytes = weight_bytes(LINEAR_INT4, 2 * shape->width, shape->dim);
    size_t down_bytes = weight_bytes(LINEAR_INT4, shape->dim, shape->width);
    size_t pairs = (size_t)rows * shape->topk;
    struct moe_expert *experts = (struct moe_expert *)calloc(shape->experts, sizeof *experts);
    for (uint32_t e = 0; e < shape->experts; e++) {
        size_t at = e * (up_bytes + down_bytes);
        experts[e].gate_up = weight_at(bench, at, LINEAR_INT4, 2 * shape->width, shape->dim);
        experts[e].down = weight_at(bench, at + up_bytes, LINEAR_INT4, shape->dim, shape->width);
    }
    struct moe_experts_args args = {};
    struct moe_expert *to = (struct moe_expert *)take(bench, shape->experts * sizeof *experts);
    upload(bench, to, experts, shape->experts * sizeof *experts);
    free(experts);
    args.x = upload_floats(bench, (size_t)rows * shape->dim);
    args.weight = upload_floats(bench, pairs);
    args.experts = to;
    args.y = (float *)take(bench, (size_t)rows * shape->dim * sizeof(float));
    args.rows = rows;
    args.topk = shape->topk;
    args.expert_count = shape->experts;
    args.dim = shape->dim;
    args.width = shape->width;
    args.segments = 1;
    args.activation = KERNEL_BF16;
    args.gate_up_format = args.down_format = LINEAR_INT4;

    call->op = "moe_experts";
    call->what = "INT4";
    call->rows = rows;
    call->context = 0;
    call->copies = bench->launches;
    call->flops = 6.0 * (double)pairs * shape->dim * shape->width;
    double met = 0;
    for (uint32_t i = 0; i < call->copies; i++) { /* every launch has other experts */
        uint32_t *expert = (uint32_t *)malloc(pairs * sizeof *expert);
        met += route(bench, rows, expert);
        uint32_t *in_memory = (uint32_t *)take(bench, pairs * sizeof *expert);
        upload(bench, in_memory, expert, pairs * sizeof *expert);
        free(expert);
        args.expert = in_memory;
        call->moe_experts[i] = args;
    }
    call->bytes = met / call->copies *
                  (double)(linear_data_bytes(LINEAR_INT4, 3 * shape->width, shape->dim) +
                           linear_scale_bytes(LINEAR_INT4, 3 * shape->width, shape->dim));
    give_scratch(bench, moe_experts_cuda_plan(&args, &bench->device).scratch_bytes);
}

/* A tree of rows, as a drafter makes them. */
static uint64_t *upload_tree(struct bench *bench, uint32_t rows) {
    uint64_t ancestors[64];
    KERNEL_CHECK(rows <= 64);
    for (uint32_t i = 0; i < rows; i++)
        ancestors[i] = (i == 0 ? 0 : ancestors[random_below(i)]) | (uint64_t)1 << i;
    uint64_t *to = (uint64_t *)take(bench, sizeof ancestors);
    upload(bench, to, ancestors, rows * sizeof *ancestors);
    return to;
}

/* A tree of rows behind a context whose pages lie in any order. */
static void make_mla_tree(struct bench *bench, struct call *call, enum kernel_dtype kv_dtype,
                          uint32_t rows, uint32_t context) {
    const struct shape *shape = &bench->shape;
    const uint32_t page_tok = 64;
    uint32_t width = shape->latent_dim + shape->rope_dim;
    uint32_t pages = (context + rows + page_tok - 1) / page_tok;
    size_t tok_bytes = kv_tok_bytes(kv_dtype, shape->latent_dim, shape->rope_dim);
    size_t cache_bytes = pages * page_tok * tok_bytes;
    uint32_t *page = (uint32_t *)malloc(pages * sizeof *page);
    for (uint32_t i = 0; i < pages; i++) {
        uint32_t other = random_below(i + 1);
        page[i] = page[other];
        page[other] = i;
    }
    uint32_t *page_in_memory = (uint32_t *)take(bench, pages * sizeof *page);
    upload(bench, page_in_memory, page, pages * sizeof *page);
    free(page);
    struct mla_sequence sequence = {0, rows, context, page_in_memory, upload_tree(bench, rows)};
    struct mla_sequence *in_memory = (struct mla_sequence *)take(bench, sizeof sequence);
    upload(bench, in_memory, &sequence, sizeof sequence);

    struct mla_tree_args args = {};
    args.q_latent = upload_floats(bench, (size_t)rows * shape->heads * shape->latent_dim);
    args.q_rope = upload_floats(bench, (size_t)rows * shape->heads * shape->rope_dim);
    args.q_rope_row_stride = (size_t)shape->heads * shape->rope_dim;
    args.q_rope_head_stride = shape->rope_dim;
    args.kv_dtype = kv_dtype;
    args.sequences = in_memory;
    args.sequence_count = 1;
    args.out = (float *)take(bench, (size_t)rows * shape->heads * shape->latent_dim * 4);
    args.heads = shape->heads;
    args.latent_dim = shape->latent_dim;
    args.rope_dim = shape->rope_dim;
    args.page_tok = page_tok;
    args.scale = 0.07f;
    args.activation = KERNEL_BF16;
    args.rows_max = rows;
    args.positions_max = context + rows;

    call->op = "mla_tree";
    call->what = kv_dtype == KERNEL_FP8 ? "FP8" : "BF16";
    call->rows = rows;
    call->context = context;
    call->copies = copies_of(bench, cache_bytes);
    call->bytes = (double)(context + rows) * (double)tok_bytes;
    call->flops = 2.0 * rows * shape->heads * (width + shape->latent_dim) * (double)context;
    for (uint32_t i = 0; i < call->copies; i++) {
        args.kv = bench->pool + i * cache_bytes;
        call->mla_tree[i] = args;
    }
    give_scratch(bench, mla_tree_cuda_plan(&args, &bench->device).scratch_bytes);
}

static void launch_copy(struct bench *bench, const struct call *call, uint32_t copy) {
    if (strcmp(call->op, "linear") == 0)
        linear_cuda(&call->linear[copy], &bench->ctx);
    else if (strcmp(call->op, "moe_experts") == 0)
        moe_experts_cuda(&call->moe_experts[copy], &bench->ctx);
    else
        mla_tree_cuda(&call->mla_tree[copy], &bench->ctx);
}

/* ============================== time ========================================================== */

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Seconds of one of the graph's launches, the best of some runs; the first warms up. */
static double time_graph(struct bench *bench, cudaGraph_t graph, uint32_t launches) {
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    double best = INFINITY;
    for (uint32_t run = 0; run <= bench->runs; run++) {
        double begin = now_seconds();
        CHECK(cudaGraphLaunch(exec, bench->stream));
        wait(bench);
        double seconds = now_seconds() - begin;
        if (run > 0 && seconds < best) best = seconds;
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return best / launches;
}

/* call: op, what, rows, context, bytes and flops. */
static void print_time(const struct bench *bench, const struct call *call, double seconds) {
    double reading = call->bytes / bench->bytes_a_second;
    double multiplying = call->flops / bench->flops_a_second;
    printf("%s,%s,%u,%u,%.2f,%.0f,%.1f,%s,%.3f\n", call->op, call->what, call->rows, call->context,
           seconds * 1e6, call->bytes / seconds * 1e-9, call->flops / seconds * 1e-12,
           reading > multiplying ? "memory" : "multiply", fmax(reading, multiplying) / seconds);
    fflush(stdout);
}

static void time_call(struct bench *bench, const struct call *call) {
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(bench->stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < bench->launches; i++)
        launch_copy(bench, call, i % call->copies);
    CHECK(cudaStreamEndCapture(bench->stream, &graph));
    print_time(bench, call, time_graph(bench, graph, bench->launches));
    bench->rest_used = 0;
}

static void measure_roofs(struct bench *bench) {
    uint32_t *sink = (uint32_t *)take(bench, sizeof *sink), rounds = bench->launches * 100;
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(bench->stream, cudaStreamCaptureModeThreadLocal));
    roof_cuda_read(bench->pool, bench->shape.pool_bytes, sink, &bench->ctx);
    CHECK(cudaStreamEndCapture(bench->stream, &graph));
    bench->bytes_a_second = (double)bench->shape.pool_bytes / time_graph(bench, graph, 1);
    CHECK(cudaStreamBeginCapture(bench->stream, cudaStreamCaptureModeThreadLocal));
    double flops = roof_cuda_multiply(rounds, sink, &bench->ctx);
    CHECK(cudaStreamEndCapture(bench->stream, &graph));
    bench->flops_a_second = flops / time_graph(bench, graph, 1);
    bench->rest_used = 0;
    printf("roof,read,0,0,0,%.0f,0,memory,1\n", bench->bytes_a_second * 1e-9);
    printf("roof,multiply,0,0,0,0,%.1f,multiply,1\n", bench->flops_a_second * 1e-12);
}

static void time_linears(struct bench *bench, struct call *call, uint32_t rows) {
    const struct shape *shape = &bench->shape;
    const struct {
        const char *what;
        enum linear_format format;
        uint32_t n, k;
        enum kernel_dtype activation;
    } cases[] = {
        {"q_a and kv_a BF16", LINEAR_BF16, shape->q_rank + shape->latent_dim + shape->rope_dim,
         shape->dim, KERNEL_BF16},
        {"o BF16", LINEAR_BF16, shape->dim, shape->v_width, KERNEL_BF16},
        {"o FP8", LINEAR_FP8, shape->dim, shape->v_width, KERNEL_BF16},
        {"router BF16 of f32", LINEAR_BF16, shape->experts, shape->dim, KERNEL_F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make_linear(bench, call, cases[i].format, rows, cases[i].n, cases[i].k,
                    cases[i].activation);
        call->what = cases[i].what;
        time_call(bench, call);
    }
}

static void time_many_rows(struct bench *bench, struct call *call, uint32_t rows) {
    const struct shape *shape = &bench->shape;
    const struct {
        const char *what[2]; /* by our kernels, by cuBLASLt */
        uint32_t n, k;
    } cases[] = {
        {{"q_a and kv_a BF16", "q_a and kv_a BF16 by cuBLASLt"},
         shape->q_rank + shape->latent_dim + shape->rope_dim,
         shape->dim},
        {{"o BF16", "o BF16 by cuBLASLt"}, shape->dim, shape->v_width},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint32_t by = 0; by < (bench->cublaslt ? 2 : 1); by++) {
            bench->device.cublaslt = by == 1 ? bench->cublaslt : NULL;
            make_linear(bench, call, LINEAR_BF16, rows, cases[i].n, cases[i].k, KERNEL_BF16);
            call->what = cases[i].what[by];
            time_call(bench, call);
        }
    bench->device.cublaslt = NULL;
}

/* The emulator has time for the least and the most. */
static void time_steps(struct bench *bench, struct call *call, bool is_tiny) {
    const struct shape *shape = &bench->shape;
    struct bench_step *steps = bench_step_open(is_tiny, shape->contexts[3]);
    call->op = "step";
    for (uint32_t r = 0; r < 7; r += is_tiny ? 6 : 1)
        for (uint32_t c = 0; c < 4; c += is_tiny ? 3 : 1) {
            call->rows = shape->rows[r];
            call->context = shape->contexts[c];
            struct bench_step_time time = bench_step_run(steps, call->rows, call->context,
                                                         bench->runs);
            call->bytes = time.bytes;
            call->flops = time.flops;
            call->what = "graph";
            print_time(bench, call, time.by_graph);
            call->what = "op by op";
            print_time(bench, call, time.by_op);
        }
    bench_step_close(&steps);
}

static int time_all(struct bench *bench, double least, bool is_tiny) {
    struct call *call = (struct call *)calloc(1, sizeof *call);
    puts("op,what,rows,context,us,GB/s,TFLOP/s,roof,share");
    measure_roofs(bench);
    for (uint32_t r = 0; r < 7; r++) {
        make_moe_experts(bench, call, bench->shape.rows[r]);
        time_call(bench, call);
        time_linears(bench, call, bench->shape.rows[r]);
        for (uint32_t c = 0; c < 4; c++) {
            make_mla_tree(bench, call, KERNEL_BF16, bench->shape.rows[r], bench->shape.contexts[c]);
            time_call(bench, call);
            make_mla_tree(bench, call, KERNEL_FP8, bench->shape.rows[r], bench->shape.contexts[c]);
            time_call(bench, call);
        }
    }
    for (uint32_t r = 0; r < 3; r++)
        time_many_rows(bench, call, bench->shape.many_rows[r]);
    time_steps(bench, call, is_tiny);
    free(call);
    if (bench->bytes_a_second * 1e-9 >= least) return 0;
    fprintf(stderr, "bench_gpu: memory gives %.0f GB/s, less than %.0f: this run is void\n",
            bench->bytes_a_second * 1e-9, least);
    return EXIT_VOID;
}

/* ============================== check ========================================================= */

/* Memory of a check, 64-byte aligned; judge gives it back. */
struct host_block {
    alignas(64) struct host_block *next;
};

static void *host_take(struct bench *bench, size_t bytes) {
    size_t all = sizeof(struct host_block) + ((bytes + 63) & ~(size_t)63);
    struct host_block *block = (struct host_block *)aligned_alloc(64, all);
    KERNEL_CHECK(block != NULL);
    block->next = bench->host;
    bench->host = block;
    return block + 1;
}

/* What the CPU's variant needs of the device's memory. */
static void *host_copy(struct bench *bench, const void *from, size_t bytes) {
    void *to = host_take(bench, bytes);
    download(bench, to, from, bytes);
    return to;
}

static struct linear_weight host_weight(struct bench *bench, const struct linear_weight *from) {
    struct linear_weight weight = *from;
    weight.data = host_copy(bench, from->data, linear_data_bytes(from->format, from->n, from->k));
    if (from->scale != NULL)
        weight.scale = host_copy(bench, from->scale,
                                 linear_scale_bytes(from->format, from->n, from->k));
    return weight;
}

/* The greatest difference, of the greatest value; NaN where one of them is. */
static double difference(const float *got, const float *want, size_t count) {
    double worst = 0, max = 0;
    for (size_t i = 0; i < count; i++) {
        double apart = fabs((double)got[i] - (double)want[i]);
        if (!(apart <= worst)) worst = apart;
        if (fabs((double)want[i]) > max) max = fabs((double)want[i]);
    }
    return worst / max;
}

static bool judge(struct bench *bench, const struct call *call, const float *y, const float *want,
                  size_t count, double tolerance) {
    float *got = (float *)host_copy(bench, y, count * sizeof *got);
    double apart = difference(got, want, count);
    bool is_good = apart <= tolerance;
    printf("%s,%s,%u,%u,%.2e,%s\n", call->op, call->what, call->rows, call->context, apart,
           is_good ? "good" : "DIFFERS");
    fflush(stdout);
    for (struct host_block *block = bench->host, *next; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
    bench->host = NULL;
    bench->rest_used = 0;
    return is_good;
}

static bool check_linear(struct bench *bench, struct call *call, enum linear_format format,
                         const char *what, uint32_t rows, enum kernel_dtype activation) {
    make_linear(bench, call, format, rows, bench->shape.dim, bench->shape.v_width, activation);
    call->what = what;
    launch_copy(bench, call, 0);
    wait(bench);
    struct linear_args args = call->linear[0];
    size_t count = (size_t)rows * args.weight.n;
    float *want = (float *)host_take(bench, count * sizeof *want);
    args.x = (float *)host_copy(bench, args.x, (size_t)rows * args.weight.k * sizeof(float));
    args.weight = host_weight(bench, &args.weight);
    args.y = want;
    struct kernel_ctx ctx = {};
    ctx.scratch_bytes = linear_scratch_bytes(activation, rows, args.weight.k);
    ctx.scratch = host_take(bench, ctx.scratch_bytes);
    linear_cpu(&args, &ctx);
    return judge(bench, call, call->linear[0].y, want, count, 1e-4);
}

static bool check_moe_experts(struct bench *bench, struct call *call, uint32_t rows) {
    make_moe_experts(bench, call, rows);
    launch_copy(bench, call, 0);
    wait(bench);
    struct moe_experts_args args = call->moe_experts[0];
    size_t pairs = (size_t)rows * args.topk, count = (size_t)rows * args.dim;
    float *want = (float *)host_take(bench, count * sizeof *want);
    uint32_t *expert = (uint32_t *)host_copy(bench, args.expert, pairs * sizeof *expert);
    struct moe_expert *experts = (struct moe_expert *)host_copy(
        bench, args.experts, args.expert_count * sizeof *experts);
    bool *is_here = (bool *)host_take(bench, args.expert_count);
    memset(is_here, 0, args.expert_count);
    for (size_t i = 0; i < pairs; i++) {
        struct moe_expert *of = &experts[expert[i]];
        if (is_here[expert[i]]) continue;
        is_here[expert[i]] = true;
        of->gate_up = host_weight(bench, &of->gate_up);
        of->down = host_weight(bench, &of->down);
    }
    args.x = (float *)host_copy(bench, args.x, count * sizeof(float));
    args.weight = (float *)host_copy(bench, args.weight, pairs * sizeof(float));
    args.expert = expert;
    args.experts = experts;
    args.y = want;
    struct kernel_ctx ctx = {};
    ctx.scratch_bytes = moe_experts_scratch_bytes(rows, args.topk, args.expert_count, args.dim,
                                                  args.width);
    ctx.scratch = host_take(bench, ctx.scratch_bytes);
    moe_experts_cpu(&args, &ctx);
    return judge(bench, call, call->moe_experts[0].y, want, count, 2e-3);
}

/* Tokens as the op that steps use writes them: scales of records are powers of two, which no
 * number of the pool is. */
static void store_tokens(struct bench *bench, const struct mla_tree_args *to, uint32_t tokens) {
    uint32_t *slot = (uint32_t *)malloc(tokens * sizeof *slot);
    for (uint32_t i = 0; i < tokens; i++)
        slot[i] = i;
    uint32_t *in_memory = (uint32_t *)take(bench, tokens * sizeof *slot);
    upload(bench, in_memory, slot, tokens * sizeof *slot);
    free(slot);
    struct kv_store_args args = {};
    args.latent_stride = args.rope_stride = to->latent_dim + to->rope_dim;
    args.latent = upload_floats(bench, tokens * args.latent_stride);
    args.rope_key = args.latent + to->latent_dim;
    args.kv = (void *)to->kv;
    args.kv_dtype = to->kv_dtype;
    args.slot = in_memory;
    args.rows = tokens;
    args.latent_dim = to->latent_dim;
    args.rope_dim = to->rope_dim;
    kv_store_cuda(&args, &bench->ctx);
}

static bool check_mla_tree(struct bench *bench, struct call *call, enum kernel_dtype kv_dtype,
                           uint32_t rows, uint32_t context) {
    make_mla_tree(bench, call, kv_dtype, rows, context);
    uint32_t page_tok = call->mla_tree[0].page_tok;
    uint32_t pages = (context + rows + page_tok - 1) / page_tok;
    store_tokens(bench, &call->mla_tree[0], pages * page_tok);
    launch_copy(bench, call, 0);
    wait(bench);
    struct mla_tree_args args = call->mla_tree[0];
    const struct shape *shape = &bench->shape;
    size_t queries = (size_t)rows * shape->heads, count = queries * shape->latent_dim;
    struct mla_sequence sequence;
    download(bench, &sequence, args.sequences, sizeof sequence);
    sequence.page = (uint32_t *)host_copy(bench, sequence.page, pages * sizeof(uint32_t));
    sequence.ancestors = (uint64_t *)host_copy(bench, sequence.ancestors, rows * sizeof(uint64_t));
    float *want = (float *)host_take(bench, count * sizeof *want);
    args.sequences = &sequence;
    args.q_latent = (float *)host_copy(bench, args.q_latent, count * sizeof(float));
    args.q_rope = (float *)host_copy(bench, args.q_rope, queries * shape->rope_dim * sizeof(float));
    args.kv = host_copy(bench, args.kv,
                        pages * page_tok *
                            kv_tok_bytes(kv_dtype, shape->latent_dim, shape->rope_dim));
    roof_cuda_fill(bench->pool, shape->pool_bytes, 1, &bench->ctx); /* of weights again */
    args.out = want;
    struct kernel_ctx ctx = {};
    ctx.scratch_bytes = mla_tree_scratch_bytes(1, shape->latent_dim, shape->rope_dim);
    ctx.scratch = host_take(bench, ctx.scratch_bytes);
    mla_tree_cpu(&args, &ctx);
    return judge(bench, call, call->mla_tree[0].out, want, count, 1e-2);
}

static bool check_steps(const struct bench *bench, bool is_tiny) {
    const struct shape *shape = &bench->shape;
    struct bench_step *steps = bench_step_open(is_tiny, shape->contexts[1]);
    bool is_good = true;
    for (uint32_t r = 0; r < 7; r += 6) {
        double apart = bench_step_differs(steps, shape->rows[r], shape->contexts[1] - 3);
        is_good &= apart == 0;
        printf("step,graph,%u,%u,%.2e,%s\n", shape->rows[r], shape->contexts[1] - 3, apart,
               apart == 0 ? "good" : "DIFFERS");
    }
    bench_step_close(&steps);
    return is_good;
}

static int check_all(struct bench *bench, bool is_whole) {
    struct call *call = (struct call *)calloc(1, sizeof *call);
    const struct shape *shape = &bench->shape;
    puts("op,what,rows,context,difference,verdict");
    bool is_good = check_ops(&bench->ctx, is_whole);
    for (uint32_t r = 0; r < 7; r += 3) {
        uint32_t rows = shape->rows[r];
        is_good &= check_linear(bench, call, LINEAR_BF16, "o BF16", rows, KERNEL_BF16);
        is_good &= check_linear(bench, call, LINEAR_BF16, "o BF16 of f32", rows, KERNEL_F32);
        is_good &= check_linear(bench, call, LINEAR_INT4, "o INT4", rows, KERNEL_BF16);
        is_good &= check_linear(bench, call, LINEAR_FP8, "o FP8", rows, KERNEL_BF16);
        is_good &= check_moe_experts(bench, call, rows);
        is_good &= check_mla_tree(bench, call, KERNEL_BF16, rows, shape->contexts[0] - 3);
        is_good &= check_mla_tree(bench, call, KERNEL_FP8, rows, shape->contexts[0] - 3);
    }
    bench->device.cublaslt = bench->cublaslt;
    is_good &= check_linear(bench, call, LINEAR_BF16,
                            bench->cublaslt ? "o BF16 by cuBLASLt" : "o BF16", shape->many_rows[0],
                            KERNEL_BF16);
    bench->device.cublaslt = NULL;
    free(call);
    is_good &= check_steps(bench, !is_whole);
    return is_good ? 0 : EXIT_DIFFER;
}

int main(int argc, char **argv) {
    bool is_tiny = argc > 2 && strcmp(argv[argc - 1], "tiny") == 0;
    bool is_check = argc > 1 && strcmp(argv[1], "check") == 0;
    if (argc < 2 || (!is_check && strcmp(argv[1], "time") != 0)) {
        fprintf(stderr, "usage: bench_gpu check|time [LEAST_GB_A_SECOND] [tiny]\n");
        return 64;
    }
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        fprintf(stderr, "bench_gpu: no GPU here\n");
        return 78;
    }
    struct cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    struct bench bench = {};
    bench.shape = is_tiny ? tiny : k26;
    bench.launches = is_tiny ? 2 : LAUNCHES;
    bench.runs = is_tiny ? 1 : 5;
    bench.device.multiprocessors = (uint32_t)properties.multiProcessorCount;
    bench.device.shared_bytes_max = properties.sharedMemPerBlockOptin;
    bench.device.has_wgmma = properties.major == 9;
    const char *trouble = cublasLtGetVersion() > 0 ? linear_cublaslt_open(&bench.cublaslt) : NULL;
    if (trouble) {
        fprintf(stderr, "bench_gpu: cuBLASLt: %s\n", trouble);
        return 70;
    }
    CHECK(cudaStreamCreateWithFlags(&bench.stream, cudaStreamNonBlocking));
    bench.ctx.stream = bench.stream;
    bench.ctx.device = &bench.device;
    bench.rest_bytes = is_tiny ? (size_t)48 << 20 : (size_t)512 << 20;
    CHECK(cudaMalloc((void **)&bench.pool, bench.shape.pool_bytes));
    CHECK(cudaMalloc((void **)&bench.rest, bench.rest_bytes));
    roof_cuda_fill(bench.pool, bench.shape.pool_bytes, 1, &bench.ctx);
    wait(&bench);
    fprintf(stderr, "bench_gpu: %s, %d multiprocessors, %zu bytes of shared memory a block\n",
            properties.name, properties.multiProcessorCount, properties.sharedMemPerBlockOptin);
    int status = is_check ? check_all(&bench, !is_tiny)
                          : time_all(&bench, argc > 2 ? strtod(argv[2], NULL) : 0, is_tiny);
    linear_cublaslt_close(&bench.cublaslt);
    CHECK(cudaFree(bench.rest));
    CHECK(cudaFree(bench.pool));
    CHECK(cudaStreamDestroy(bench.stream));
    return status;
}
