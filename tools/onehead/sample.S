/* The batch that `onehead run` uses when no file is given: golden/sample.safetensors, as read-only bytes. Aligned like a
 * mapped file's payload may be expected to be, so that tensors can be used in place. */
    .section .rodata.onehead_sample, "a"
    .balign 64
    .globl onehead_sample_begin
    .type onehead_sample_begin, %object
onehead_sample_begin:
    .incbin ONEHEAD_SAMPLE_FILE
    .size onehead_sample_begin, . - onehead_sample_begin
    .globl onehead_sample_end
    .type onehead_sample_end, %object
onehead_sample_end:
    .byte 0
    .size onehead_sample_end, 1
    .section .note.GNU-stack, "", %progbits
