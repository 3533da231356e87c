# In a coverage build, the target coverage_report runs all tests and prints, by file, the lines and branches that they
# reach: cmake --build --preset coverage --target coverage_report

find_program(ONEHEAD_GCOVR gcovr REQUIRED)
add_custom_target(coverage_report
    COMMAND find "${PROJECT_BINARY_DIR}" -name "*.gcda" -delete
    COMMAND "${CMAKE_CTEST_COMMAND}" --output-on-failure
    COMMAND "${ONEHEAD_GCOVR}" --root "${PROJECT_SOURCE_DIR}" --object-directory "${PROJECT_BINARY_DIR}"
        --filter "${PROJECT_SOURCE_DIR}/core/" --filter "${PROJECT_SOURCE_DIR}/tools/"
        --filter "${PROJECT_SOURCE_DIR}/backends/" --exclude-throw-branches --branches
        --html-details "${PROJECT_BINARY_DIR}/coverage.html"
    COMMAND "${ONEHEAD_GCOVR}" --root "${PROJECT_SOURCE_DIR}" --object-directory "${PROJECT_BINARY_DIR}"
        --filter "${PROJECT_SOURCE_DIR}/core/" --filter "${PROJECT_SOURCE_DIR}/tools/"
        --filter "${PROJECT_SOURCE_DIR}/backends/"
    WORKING_DIRECTORY "${PROJECT_BINARY_DIR}"
    VERBATIM USES_TERMINAL)
