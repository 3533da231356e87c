/* How libFuzzer changes a safetensors file: as it likes, but mostly with the header's length set right afterwards. With
 * a wrong one nothing behind the first check is reached, and a change of the header's size always makes it wrong. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t size, size_t most);

enum { LENGTH_BYTES = 8 };

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed) {
    const size_t mutated = LLVMFuzzerMutate(bytes, size, most);
    if (mutated <= LENGTH_BYTES || seed % 8 == 0) return mutated;
    size_t end = mutated; /* of the header: behind the last brace, which data rarely hold */
    while (end > LENGTH_BYTES && bytes[end - 1] != '}')
        end--;
    const uint64_t length = end - LENGTH_BYTES;
    memcpy(bytes, &length, sizeof length);
    return mutated;
}
