/* Checkpoint folders, good and malformed: every refusal names the file, and the tensor where one is
 * known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "safetensors.h"
#include "tensor_store.h"

#define EMBEDDED ESPALIER_SOURCE_DIR "/deploy/model"
#define INDEX    "model.safetensors.index.json"

/* A file of this header and `data_bytes` zeros. claimed: the length written in front; 0 for the
 * header's own. */
static void write_file(const char *folder, const char *name, const char *header, uint64_t claimed,
                       size_t data_bytes) {
    size_t header_bytes = strlen(header);
    char *file = calloc(1, 8 + header_bytes + data_bytes);
    uint64_t length = claimed ? claimed : header_bytes;
    assert_non_null(file);
    memcpy(file, &length, sizeof length);
    memcpy(file + 8, header, header_bytes);
    folder_write(folder, name, file, 8 + header_bytes + data_bytes);
    free(file);
}

static void expect_refusal(const char *folder, const char *label, enum status wanted,
                           const char *const words[3]) {
    struct safetensors *set = NULL;
    struct error err = {0};
    enum status status = safetensors_open(folder, &set, &err);
    if (status != wanted) fail_msg("%s: %s: %s", label, status_name(status), err.text);
    assert_null(set);
    for (size_t w = 0; w < 3 && words[w]; w++)
        if (!strstr(err.text, words[w]))
            fail_msg("%s: \"%s\" is not in \"%s\"", label, words[w], err.text);
    assert_null(strchr(err.text, '\n'));
}

#define A "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]}"

static void test_malformed_headers(void **state) {
    (void)state;
    static const struct {
        const char *label;
        const char *header;
        uint64_t claimed;
        size_t data_bytes;
        const char *words[3];
    } cases[] = {
        {"huge length", "{" A "}", UINT64_MAX, 12, {"header length 18446744073709551615"}},
        {"length above the bound", "{" A "}", 104857601, 12, {"header length 104857601"}},
        {"length beyond the file", "{" A "}", 80, 12, {"header length 80"}},
        {"length beyond the file by one", "{}", 3, 0, {"header length 3", "2 bytes that follow"}},
        {"empty header", "", 0, 0, {"byte 0", "expected {"}},
        {"truncated JSON", "{" A, 0, 12, {"expected , or a closing bracket"}},
        {"header cut by its length", "{" A "}", 40, 12, {"not valid"}},
        {"array", "[]", 0, 0, {"expected {"}},
        {"rest behind the object", "{" A "} x", 0, 12, {"text after the end"}},
        {"trailing comma", "{" A ",}", 0, 12, {"expected a string"}},
        {"missing comma", "{" A " " A "}", 0, 12, {"expected ,"}},
        {"duplicate name", "{" A "," A "}", 0, 12, {"tensor a", "overlaps"}},
        {"duplicate empty tensors",
         "{\"e\":{\"dtype\":\"I32\",\"shape\":[0],\"data_offsets\":[0,0]},"
         "\"e\":{\"dtype\":\"I32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
         0,
         0,
         {"tensor e", "already"}},
        {"overlap",
         "{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[10,14]}}",
         0,
         14,
         {"tensor b", "overlaps tensor a"}},
        {"hole",
         "{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[16,20]}}",
         0,
         20,
         {"tensor b", "hole of 4 bytes"}},
        {"hole in front",
         "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[4,8]}}",
         0,
         8,
         {"tensor a", "hole of 4 bytes"}},
        {"rest behind the last tensor", "{" A "}", 0, 13, {"1 bytes behind the last tensor"}},
        {"no tensors but data", "{}", 0, 4, {"4 bytes behind"}},
        {"offsets beyond the file", "{" A "}", 0, 11, {"tensor a", "[0, 12]", "11 data bytes"}},
        {"offsets reversed",
         "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[8,4]}}",
         0,
         8,
         {"tensor a", "[8, 4]"}},
        {"negative offset",
         "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[-4,0]}}",
         0,
         0,
         {"expected a whole number"}},
        {"fractional size",
         "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2.5],\"data_offsets\":[0,5]}}",
         0,
         5,
         {"expected a whole number"}},
        {"number too large",
         "{\"a\":{\"dtype\":\"BF16\",\"shape\":[99999999999999999999],\"data_offsets\":[0,5]}}",
         0,
         5,
         {"number too large"}},
        {"size overflows",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,1],\"data_offsets\":[0,0]}}",
         0,
         0,
         {"tensor a", "absurdly large"}},
        {"span is not the shape's",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,12]}}",
         0,
         12,
         {"tensor a", "12 bytes", "24"}},
        {"unknown dtype",
         "{\"a\":{\"dtype\":\"Q4\",\"shape\":[2],\"data_offsets\":[0,1]}}",
         0,
         1,
         {"tensor a", "\"Q4\""}},
        {"five dimensions",
         "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,1]}}",
         0,
         1,
         {"tensor a", "5 dimensions"}},
        {"no dtype", "{\"a\":{\"shape\":[2],\"data_offsets\":[0,4]}}", 0, 4, {"tensor a", "lacks"}},
        {"field twice",
         "{\"a\":{\"dtype\":\"I8\",\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
         0,
         1,
         {"each once"}},
        {"unknown field",
         "{\"a\":{\"dtype\":\"I8\",\"x\":1,\"shape\":[1],\"data_offsets\":[0,1]}}",
         0,
         1,
         {"each once"}},
        {"empty name",
         "{\"\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
         0,
         1,
         {"name is 0 bytes"}},
        {"control character in a name",
         "{\"a\\u000ab\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
         0,
         1,
         {"control character"}},
        {"name does not end", "{\"a", 0, 0, {"string does not end"}},
        {"metadata nested too deeply",
         "{\"__metadata__\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"
         "]"
         "]]]]]]]]}",
         0,
         0,
         {"nested too deeply"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[64];
        folder_create(folder);
        write_file(folder, "model.safetensors", cases[i].header, cases[i].claimed,
                   cases[i].data_bytes);
        expect_refusal(folder, cases[i].label, STATUS_INVALID_ARGUMENT, cases[i].words);
        const char *const file[3] = {"model.safetensors"};
        expect_refusal(folder, cases[i].label, STATUS_INVALID_ARGUMENT, file);
        folder_remove(folder);
    }
}

static void test_malformed_indexes(void **state) {
    (void)state;
    static const struct {
        const char *label;
        const char *index;
        enum status status;
        const char *words[3];
    } cases[] = {
        {"missing shard",
         "{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}",
         STATUS_NOT_FOUND,
         {"2.safetensors"}},
        {"name in no file",
         "{\"weight_map\":{\"a\":\"1.safetensors\",\"z\":\"1.safetensors\"}}",
         STATUS_INVALID_ARGUMENT,
         {"1.safetensors", "tensor z", "index"}},
        {"name in another file",
         "{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"1.safetensors\","
         "\"c\":\"other.safetensors\"}}",
         STATUS_INVALID_ARGUMENT,
         {"tensor b", "it is in other.safetensors"}},
        {"name in two files",
         "{\"weight_map\":{\"a\":\"1.safetensors\",\"c\":\"copy.safetensors\"}}",
         STATUS_INVALID_ARGUMENT,
         {"tensor a", "already", "copy.safetensors"}},
        {"path out of the folder",
         "{\"weight_map\":{\"a\":\"../1.safetensors\"}}",
         STATUS_INVALID_ARGUMENT,
         {"../1.safetensors", "without a folder"}},
        {"hidden file", "{\"weight_map\":{\"a\":\"..\"}}", STATUS_INVALID_ARGUMENT, {"\"..\""}},
        {"no weight_map", "{\"metadata\":{}}", STATUS_INVALID_ARGUMENT, {"weight_map"}},
        {"empty weight_map", "{\"weight_map\":{}}", STATUS_INVALID_ARGUMENT, {"weight_map"}},
        {"two weight_maps",
         "{\"weight_map\":{\"a\":\"1.safetensors\"},\"weight_map\":{\"a\":\"1.safetensors\"}}",
         STATUS_INVALID_ARGUMENT,
         {"two weight_map"}},
        {"file is a number",
         "{\"weight_map\":{\"a\":1}}",
         STATUS_INVALID_ARGUMENT,
         {"expected a string"}},
        {"not JSON", "weights", STATUS_INVALID_ARGUMENT, {INDEX, "byte 0"}},
        {"empty", "", STATUS_INVALID_ARGUMENT, {INDEX}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[64];
        folder_create(folder);
        write_file(folder, "1.safetensors", "{" A "}", 0, 12);
        write_file(folder, "copy.safetensors", "{" A "}", 0, 12);
        write_file(folder, "other.safetensors",
                   "{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                   "\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                   0, 2);
        folder_write(folder, INDEX, cases[i].index, strlen(cases[i].index));
        expect_refusal(folder, cases[i].label, cases[i].status, cases[i].words);
        folder_remove(folder);
    }
}

/* Things that are no readable regular file in the place of model.safetensors. */
static void test_odd_files(void **state) {
    (void)state;
    enum odd { NOTHING, FOLDER, LOOP, BROKEN_LINK, PIPE, SHORT_FILE, UNREADABLE };
    static const struct {
        enum odd odd;
        enum status status;
        const char *words[3];
    } cases[] = {
        {NOTHING, STATUS_NOT_FOUND, {"neither model.safetensors nor " INDEX}},
        {FOLDER, STATUS_INVALID_ARGUMENT, {"model.safetensors", "not a regular file"}},
        {LOOP, STATUS_INVALID_ARGUMENT, {"model.safetensors", "symbolic links"}},
        {BROKEN_LINK, STATUS_NOT_FOUND, {"model.safetensors"}},
        {PIPE, STATUS_INVALID_ARGUMENT, {"model.safetensors", "not a regular file"}},
        {SHORT_FILE, STATUS_INVALID_ARGUMENT, {"model.safetensors", "too short"}},
        {UNREADABLE, STATUS_PERMISSION_DENIED, {"model.safetensors", "ermission"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[64];
        char path[96];
        folder_create(folder);
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        switch (cases[i].odd) {
        case NOTHING: break;
        case FOLDER: assert_int_equal(mkdir(path, 0700), 0); break;
        case LOOP: assert_int_equal(symlink("model.safetensors", path), 0); break;
        case BROKEN_LINK: assert_int_equal(symlink("nowhere", path), 0); break;
        case PIPE: assert_int_equal(mkfifo(path, 0600), 0); break;
        case SHORT_FILE: folder_write(folder, "model.safetensors", "1234567", 7); break;
        case UNREADABLE:
            write_file(folder, "model.safetensors", "{" A "}", 0, 12);
            assert_int_equal(chmod(path, 0), 0);
            break;
        }
        /* Root reads everything: become nobody for the call. */
        bool become_nobody = cases[i].odd == UNREADABLE && geteuid() == 0;
        if (become_nobody) {
            assert_int_equal(chmod(folder, 0755), 0);
            assert_int_equal(seteuid(65534), 0);
        }
        expect_refusal(folder, "odd file", cases[i].status, cases[i].words);
        if (become_nobody) assert_int_equal(seteuid(0), 0);
        folder_remove(folder);
    }
}

static void test_single_file(void **state) {
    (void)state;
    char folder[64];
    struct safetensors *set;
    struct error err;
    folder_create(folder);
    /* Escapes, white space, any order of fields, metadata, a scalar, an empty tensor, odd dtypes,
     * padding; and an index that is not looked at. */
    write_file(folder, "model.safetensors",
               " {\"__metadata__\" : {\"format\":\"pt\", \"n\":[1, -2.5e3, true, null]} ,\n"
               "\"w\\/\\u0078\\u00e9\\ud83d\\ude00\":{\"data_offsets\":[1,5],\"shape\":[2,1],"
               "\"dtype\":\"BF16\"},\"e\":{\"dtype\":\"I64\",\"shape\":[0,7],"
               "\"data_offsets\":[5,5]},\"s\":{\"dtype\":\"F8_E4M3\",\"shape\":[],"
               "\"data_offsets\":[0,1]},\"q\":{\"dtype\":\"F4\",\"shape\":[3],"
               "\"data_offsets\":[5,7]}}   ",
               0, 7);
    folder_write(folder, INDEX, "rubbish", 7);
    assert_int_equal(safetensors_open(folder, &set, &err), STATUS_OK);
    assert_int_equal(safetensors_count(set), 4);
    assert_int_equal(safetensors_file_count(set), 1);
    const struct tensor_info *tensor = safetensors_find(set, "w/x\xc3\xa9\xf0\x9f\x98\x80");
    assert_non_null(tensor);
    assert_ptr_equal(tensor, safetensors_at(set, 0));
    assert_int_equal(tensor->dtype, TENSOR_BF16);
    assert_int_equal(tensor->dims, 2);
    assert_int_equal(tensor->shape[0], 2);
    assert_int_equal(tensor->shape[1], 1);
    assert_int_equal(tensor->bytes, 4);
    struct stat info;
    assert_int_equal(stat(safetensors_path(set, tensor->file), &info), 0);
    assert_int_equal(tensor->offset, info.st_size - 6);
    assert_int_equal(safetensors_find(set, "s")->dims, 0);
    assert_int_equal(safetensors_find(set, "q")->dtype, TENSOR_OTHER);
    assert_null(safetensors_find(set, "__metadata__"));
    assert_null(safetensors_find(set, "w"));
    safetensors_close(&set);
    assert_null(set);
    folder_remove(folder);
}

/* The embedded model against a reading by other means. */
static void test_embedded_model(void **state) {
    (void)state;
    struct safetensors *set;
    struct error err;
    struct tensor_store *store = tensor_store_create();
    tensor_store_read(store, EMBEDDED);
    assert_int_equal(safetensors_open(EMBEDDED, &set, &err), STATUS_OK);
    assert_int_equal(safetensors_count(set), store->count);
    assert_int_equal(safetensors_file_count(set), 2);
    for (uint32_t i = 0; i < store->count; i++) {
        const struct store_tensor *wanted = &store->tensor[i];
        const struct tensor_info *tensor = safetensors_find(set, wanted->name);
        assert_non_null(tensor);
        assert_string_equal(tensor_dtype_name(tensor->dtype), wanted->dtype);
        assert_int_equal(tensor->dims, wanted->dims);
        for (uint32_t d = 0; d < tensor->dims; d++)
            assert_int_equal(tensor->shape[d], wanted->shape[d]);
        assert_int_equal(tensor->bytes, wanted->bytes);
        FILE *file = fopen(safetensors_path(set, tensor->file), "rb");
        uint8_t *data = malloc(tensor->bytes + 1);
        assert_int_equal(fseek(file, (long)tensor->offset, SEEK_SET), 0);
        assert_int_equal(fread(data, 1, tensor->bytes, file), tensor->bytes);
        assert_memory_equal(data, wanted->data, tensor->bytes);
        free(data);
        fclose(file);
    }
    safetensors_close(&set);
    tensor_store_destroy(store);
}

/* Equal for a copy elsewhere; different where name, dtype, shape or place differ. */
static void test_fingerprint(void **state) {
    (void)state;
    static const char *const headers[] = {
        "{" A "}",
        "{" A "}",
        "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]}}",
        "{\"a\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[0,12]}}",
        "{\"a\":{\"dtype\":\"I16\",\"shape\":[2,3],\"data_offsets\":[0,12]}}",
        "{\"a\":{\"dtype\":\"BF16\",\"shape\":[3,2],\"data_offsets\":[0,12]}}",
        "{\"a\":{\"dtype\":\"BF16\",\"shape\":[6],\"data_offsets\":[0,12]}}",
        "{" A "} ",
        "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[8,12]}}",
        "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[4,12]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}",
    };
    enum { COUNT = sizeof headers / sizeof *headers };
    uint64_t prints[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        char folder[64];
        struct safetensors *set;
        struct error err;
        folder_create(folder);
        write_file(folder, "model.safetensors", headers[i], 0, 12);
        assert_int_equal(safetensors_open(folder, &set, &err), STATUS_OK);
        prints[i] = safetensors_fingerprint(set);
        safetensors_close(&set);
        folder_remove(folder);
    }
    assert_true(prints[0] == prints[1]);
    for (size_t i = 1; i < COUNT; i++)
        for (size_t j = i + 1; j < COUNT; j++)
            assert_true(prints[i] != prints[j]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malformed_headers), cmocka_unit_test(test_malformed_indexes),
        cmocka_unit_test(test_odd_files),         cmocka_unit_test(test_single_file),
        cmocka_unit_test(test_embedded_model),    cmocka_unit_test(test_fingerprint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
