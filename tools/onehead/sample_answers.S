/* What `onehead check` expects of the built-in sample: golden/sample.json, as read-only text. */
    .section .rodata.onehead_sample_answers, "a"
    .globl onehead_sample_answers_begin
    .type onehead_sample_answers_begin, %object
onehead_sample_answers_begin:
    .incbin ONEHEAD_SAMPLE_ANSWERS_FILE
    .size onehead_sample_answers_begin, . - onehead_sample_answers_begin
    .globl onehead_sample_answers_end
    .type onehead_sample_answers_end, %object
onehead_sample_answers_end:
    .byte 0
    .size onehead_sample_answers_end, 1
    .section .note.GNU-stack, "", %progbits
