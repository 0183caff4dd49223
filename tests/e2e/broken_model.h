/* A small sound checkpoint, broken in one way. */
#ifndef ESPALIER_BROKEN_MODEL_H
#define ESPALIER_BROKEN_MODEL_H

enum broken_how {
    BROKEN_NOT,
    /* config.json */
    BROKEN_CONFIG, /* the field `where` becomes `what`, as JSON; "-" removes it */
    /* any file: `where` is its name in the folder */
    BROKEN_TEXT,   /* its content becomes `what` */
    BROKEN_NESTED, /* becomes `number` opening brackets */
    BROKEN_LONG,   /* becomes an array of `number` zeros */
    BROKEN_GONE,
    BROKEN_CUT,    /* is cut to `number` bytes */
    BROKEN_LONGER, /* `number` bytes are appended */
    BROKEN_LOOP,   /* becomes a symbolic link to itself */
    BROKEN_LINK,   /* becomes a symbolic link to `what` */
    BROKEN_FOLDER,
    BROKEN_PIPE,
    BROKEN_SECRET, /* may not be read */
    /* model.safetensors */
    BROKEN_LENGTH,   /* the header's length becomes `number` */
    BROKEN_HEADER,   /* the header becomes `what`, with `number` bytes of data behind it */
    BROKEN_REPLACED, /* in a file, the first `what` becomes `with`, as long */
    /* a tensor: `where` is its name */
    BROKEN_MISSING,
    BROKEN_EXTRA,
    BROKEN_TWICE,  /* also in another shard */
    BROKEN_DTYPE,  /* becomes `what`, of the same size */
    BROKEN_SHAPE,  /* one column more */
    BROKEN_TURNED, /* transposed */
    BROKEN_VALUE,  /* value `index` becomes `number`, in its bits */
};

struct broken_model {
    const char *kind; /* of model_fixture */
    enum broken_how how;
    const char *where, *what, *with;
    unsigned long long number;
    unsigned index;
    const char *tp; /* of the group that is to load it; NULL: 1 */
};

/* A new folder; folder_remove (tensor_store.h) takes it away. */
void broken_model_make(const struct broken_model *broken, char folder_out[64]);

#endif
