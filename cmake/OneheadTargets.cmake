# How every target of the project is compiled and linked: onehead_build (an interface library), and the functions that
# make plugins.

set(ONEHEAD_BUILD_BACKEND_DIR "${PROJECT_BINARY_DIR}/backends")
set(ONEHEAD_INSTALL_BACKEND_DIR "${CMAKE_INSTALL_LIBDIR}/onehead/backends")
set(ONEHEAD_BACKEND_DIR "${CMAKE_INSTALL_FULL_LIBDIR}/onehead/backends")

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# Installed targets have one run path, in the build tree too: CMake would pad the build tree's with colons, to edit it in
# place when installing, and the empty element that this makes means "the working directory" to the dynamic linker. So
# folders of the build tree lie to each other as the installed ones do.
file(RELATIVE_PATH ONEHEAD_BIN_TO_LIB "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
cmake_path(APPEND CMAKE_RUNTIME_OUTPUT_DIRECTORY "${ONEHEAD_BIN_TO_LIB}" OUTPUT_VARIABLE CMAKE_LIBRARY_OUTPUT_DIRECTORY)
cmake_path(NORMAL_PATH CMAKE_LIBRARY_OUTPUT_DIRECTORY)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}")

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

add_library(onehead_build INTERFACE)
target_compile_definitions(onehead_build INTERFACE
    $<$<COMPILE_LANGUAGE:C>:_GNU_SOURCE=>
    ONEHEAD_VERSION="${PROJECT_VERSION}"
    ONEHEAD_SANITIZER="${ONEHEAD_SANITIZE}")
# Contraction would let each compiler choose where an fma goes, and with it the last bit of a result.
set(warnings -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wvla)
if(ONEHEAD_WERROR AND NOT ONEHEAD_SANITIZE) # sanitizers make GCC warn of accesses that aren't there
    list(APPEND warnings -Werror)
endif()
target_compile_options(onehead_build INTERFACE $<$<COMPILE_LANGUAGE:C>:-fno-math-errno;-ffp-contract=off;${warnings}>)

if(ONEHEAD_SANITIZE STREQUAL "address")
    set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(ONEHEAD_SANITIZE STREQUAL "thread")
    set(sanitize -fsanitize=thread -fno-omit-frame-pointer)
elseif(NOT ONEHEAD_SANITIZE STREQUAL "")
    message(FATAL_ERROR "ONEHEAD_SANITIZE is '${ONEHEAD_SANITIZE}'; expected empty, address or thread")
endif()
target_compile_options(onehead_build INTERFACE $<$<COMPILE_LANGUAGE:C>:${sanitize}>)
target_link_options(onehead_build INTERFACE ${sanitize})
if(ONEHEAD_COVERAGE)
    target_compile_options(onehead_build INTERFACE $<$<COMPILE_LANGUAGE:C>:--coverage;-fprofile-update=atomic>)
    target_link_options(onehead_build INTERFACE --coverage)
endif()

if(ONEHEAD_FUZZ) # what guides the fuzzers is the code under test's own counters
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "ONEHEAD_FUZZ: the compiler is ${CMAKE_C_COMPILER_ID}; expected Clang, whose libFuzzer it is")
    endif()
    target_compile_options(onehead_build INTERFACE $<$<COMPILE_LANGUAGE:C>:-fsanitize=fuzzer-no-link>)
    target_link_options(onehead_build INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Clang's sanitizer runtime is in the executable, so its symbols are undefined in every shared object.
if(ONEHEAD_SANITIZE AND CMAKE_C_COMPILER_ID MATCHES "Clang")
    set(ONEHEAD_LINK_DEFS "")
else()
    set(ONEHEAD_LINK_DEFS "LINKER:-z,defs")
endif()

# onehead_check_listed(LISTED file... FOLDERS folder...): warns of a .c file in the folders that isn't among the listed
# ones, which would silently not be built. -Werror=dev makes it an error.
function(onehead_check_listed)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "LISTED;FOLDERS")
    foreach(folder IN LISTS arg_FOLDERS)
        file(GLOB found RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" CONFIGURE_DEPENDS
            "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.c")
        foreach(file IN LISTS found)
            if(NOT file IN_LIST arg_LISTED)
                message(AUTHOR_WARNING "${CMAKE_CURRENT_SOURCE_DIR}/${file} is in no list of its CMakeLists.txt")
            endif()
        endforeach()
    endforeach()
endfunction()

# onehead_add_plugin(TARGET NAME name [OUTPUT_DIRECTORY dir] [INSTALL] SOURCES file...)
#
# Makes onehead-<name>.so, a module that exports oh_backend_v1 and nothing else, in the build tree's backend directory
# (or `dir`). The loader refuses a plugin that group or others could have written, so modes are set whatever the umask.
function(onehead_add_plugin target)
    cmake_parse_arguments(PARSE_ARGV 1 arg "INSTALL" "NAME;OUTPUT_DIRECTORY" "SOURCES")
    if(NOT arg_OUTPUT_DIRECTORY)
        set(arg_OUTPUT_DIRECTORY "${ONEHEAD_BUILD_BACKEND_DIR}")
    endif()
    file(MAKE_DIRECTORY "${arg_OUTPUT_DIRECTORY}")
    file(CHMOD "${arg_OUTPUT_DIRECTORY}" DIRECTORY_PERMISSIONS ${CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS})

    set(map "${PROJECT_SOURCE_DIR}/backends/plugin.map")
    add_library(${target} MODULE ${arg_SOURCES})
    set_target_properties(${target} PROPERTIES
        PREFIX ""
        OUTPUT_NAME "onehead-${arg_NAME}"
        LIBRARY_OUTPUT_DIRECTORY "${arg_OUTPUT_DIRECTORY}"
        LINK_DEPENDS "${map}")
    target_compile_definitions(${target} PRIVATE
        ONEHEAD_BUILD_STRING="onehead ${PROJECT_VERSION}, ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE}")
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/core/include")
    target_link_libraries(${target} PRIVATE onehead_build m)
    target_link_options(${target} PRIVATE
        "LINKER:--version-script=${map}" LINKER:-Bsymbolic-functions ${ONEHEAD_LINK_DEFS})
    add_custom_command(TARGET ${target} POST_BUILD COMMAND chmod go-w "$<TARGET_FILE:${target}>" VERBATIM)
    if(arg_INSTALL)
        set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
        install(TARGETS ${target} LIBRARY DESTINATION "${ONEHEAD_INSTALL_BACKEND_DIR}"
            PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
    endif()
endfunction()
