/* progress.h - what the command is doing, on stderr and only when that is a terminal. */
#ifndef ONEHEAD_TOOL_PROGRESS_H
#define ONEHEAD_TOOL_PROGRESS_H

/* Shows the text in place of the last one; NULL clears the line, which must come before any other output. */
void progress_show(const char *text);

#endif
