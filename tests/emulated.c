/* The operators on a machine that is emulated: one call, all of whose operands come by stdin.

   In: the function's name, 32 bytes; how many operands; of each a size, then so many bytes and
   where in them the pointer goes, or -1 and a number that is passed as it is. Out: what the
   function returned, then the bytes of all operands that have some. tests/emulated.py */
#include "operators.c"
#include <stdio.h>

#define MOST 10
typedef int64_t function(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                         int64_t, int64_t); /* 64 bits each, those that it does not have ignored */
#define BOTH(name) {#name "_float32", (function *)name##_float32}, \
                   {#name "_bfloat16", (function *)name##_bfloat16}

static const struct { const char *name; function *run; } FUNCTIONS[] = {
    BOTH(forward), BOTH(backward),
};

static void in(void *to, int64_t size) {
    if (size && fread(to, size, 1, stdin) != 1) exit(2);
}

static int64_t number(void) {
    int64_t found;
    in(&found, 8);
    return found;
}

int main(void) {
    char name[32], *bytes[MOST] = {0};
    int64_t given[MOST] = {0}, sizes[MOST];
    in(name, sizeof name);
    const int64_t count = number();
    for (int i = 0; i < count; i++) {
        sizes[i] = number();
        if (sizes[i] >= 0) {
            bytes[i] = malloc(sizes[i]);
            in(bytes[i], sizes[i]);
        }
        given[i] = number() + (int64_t)bytes[i];
    }
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
        if (strcmp(FUNCTIONS[i].name, name)) continue;
        const int returned = FUNCTIONS[i].run(given[0], given[1], given[2], given[3], given[4],
                                              given[5], given[6], given[7], given[8], given[9]);
        const int64_t answer = name[0] == 'f' || name[0] == 'b' ? returned : 0; /* others: void */
        fwrite(&answer, 8, 1, stdout);
        for (int at = 0; at < count; at++)
            if (bytes[at]) fwrite(bytes[at], sizes[at], 1, stdout);
        return 0;
    }
    return 3;
}
