/* checkpoint.h - finds the lm_head weight that `--lm-head FILE[:TENSOR]` names.
 *
 * FILE is one of
 *   - a .safetensors file;
 *   - an index, NAME.json (model.safetensors.index.json, say), whose weight_map says which shard beside it holds a
 * tensor;
 *   - a checkpoint folder with model.safetensors.index.json or, failing that, model.safetensors.
 * A FILE whose own name holds ':' is taken whole when it exists; otherwise the last ':' with an existing FILE in front
 * of it separates TENSOR.
 *
 * Without TENSOR it is `lm_head` or `lm_head.weight`; where there is neither, the tied input embedding:
 * `model.embed_tokens.weight`, `embed_tokens.weight`, `transformer.wte.weight` or
 * `model.language_model.embed_tokens.weight`. Two heads, or no head and two embeddings, are ambiguous, and an embedding
 * is no head where a config.json beside FILE has tie_word_embeddings false (that of its text_config goes first): errors
 * that ask for TENSOR, because the wrong weight gives plausible numbers. */
#ifndef ONEHEAD_TOOL_CHECKPOINT_H
#define ONEHEAD_TOOL_CHECKPOINT_H

#include "safetensors.h"

typedef struct ckpt_head {
    st_file *file;           /* the file or shard that holds the weight; owned */
    const st_tensor *tensor; /* [V, H], both at least 1; F32, F16 or BF16; maybe misaligned (safetensors.h) */
    bool tied;               /* an input embedding that serves as the head */
} ckpt_head;

/* Opens and checks. On failure the record is zeroed. Errors: OH_IO (no such file, can't be read), OH_BAD_DATA (invalid
 * file, no or several candidates, wrong rank or dtype), OH_OUT_OF_MEMORY. */
oh_status ckpt_open(ckpt_head *head, const char *spec, oh_error *error);

/* The name of the input embedding that serves as the head, NULL where it is none. Belongs to the head. */
const char *ckpt_embedding(const ckpt_head *head);

/* Cuts `path`, a copy of the spec, into FILE and TENSOR (NULL where there is none). Errors: OH_IO, OH_BAD_DATA. */
oh_status ckpt_split_spec(char *path, char **tensor, oh_error *error);

/* Whether a file is an index, by its name. */
bool ckpt_is_index_name(const char *path);

/* Closes the file and clears the record; a zeroed record is fine. */
void ckpt_close(ckpt_head *head);

#endif
