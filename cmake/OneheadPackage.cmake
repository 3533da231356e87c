# What lets other projects find an installed onehead: a CMake package and a pkg-config file. Both are relative to their
# own place, so that an installation can be staged and moved.

include(CMakePackageConfigHelpers)

set(cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/onehead")
configure_package_config_file(cmake/oneheadConfig.cmake.in oneheadConfig.cmake
    INSTALL_DESTINATION "${cmake_dir}"
    PATH_VARS ONEHEAD_INSTALL_BACKEND_DIR)
# Before 1.0 a minor version may break the interface.
write_basic_package_version_file(oneheadConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/oneheadConfig.cmake" "${PROJECT_BINARY_DIR}/oneheadConfigVersion.cmake"
    DESTINATION "${cmake_dir}")
install(EXPORT onehead NAMESPACE onehead:: FILE oneheadTargets.cmake DESTINATION "${cmake_dir}")

file(RELATIVE_PATH pc_prefix "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
set(pc_libdir "\${prefix}")
set(pc_includedir "\${prefix}")
cmake_path(APPEND pc_libdir "${CMAKE_INSTALL_LIBDIR}")
cmake_path(APPEND pc_includedir "${CMAKE_INSTALL_INCLUDEDIR}")
configure_file(cmake/onehead.pc.in onehead.pc @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/onehead.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
