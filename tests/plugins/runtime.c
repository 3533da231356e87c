/* A library called like a sanitizer's runtime, for a plugin to need. */
__attribute__((visibility("default"))) int planted_runtime(void);

int planted_runtime(void) {
    return 0;
}
