#include "config_edit.h"

#include <json-c/json.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void config_edit(struct json_object *root, const char *edits) {
    char *copy = strdup(edits);
    char *rest = copy;
    for (char *one = strsep(&rest, ";"); one; one = strsep(&rest, ";")) {
        if (!*one) continue;
        char *value = strchr(one, '=');
        assert_non_null(value);
        *value++ = '\0';
        struct json_object *object = root;
        char *path = one;
        char *key = strsep(&path, "/");
        for (; path; key = strsep(&path, "/"))
            assert_true(json_object_object_get_ex(object, key, &object));
        if (strcmp(value, "-") == 0)
            json_object_object_del(object, key);
        else
            json_object_object_add(object, key, json_tokener_parse(value));
    }
    free(copy);
}
