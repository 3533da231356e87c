# Writes commit.h, with the commit that is being built, into OUTPUT; run at every build, touches the file when it changes.
# cmake -D SOURCE=dir -D OUTPUT=file -D COMPILER=text -D BUILD_TYPE=text -P OneheadCommit.cmake
find_program(git git)
set(commit "")
if(git)
    execute_process(COMMAND "${git}" -C "${SOURCE}" describe --always --dirty --abbrev=12 --match "v[0-9]*"
        OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(text "#define ONEHEAD_COMMIT \"${commit}\"
#define ONEHEAD_COMPILER \"${COMPILER}\"
#define ONEHEAD_BUILD_TYPE \"${BUILD_TYPE}\"
")
set(before "")
if(EXISTS "${OUTPUT}")
    file(READ "${OUTPUT}" before)
endif()
if(NOT before STREQUAL text)
    file(WRITE "${OUTPUT}" "${text}")
endif()
