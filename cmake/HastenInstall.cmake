# `cmake --install`: the headers, the two libraries and the package for find_package(hasten); apps/ installs the programs.
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/hasten")

set_target_properties(hasten_native PROPERTIES EXPORT_NAME native)
install(TARGETS hasten hasten_native EXPORT hastenTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/hasten" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h")

install(EXPORT hastenTargets NAMESPACE hasten:: DESTINATION "${package_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/hastenConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/hastenConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/hastenConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/hastenConfig.cmake" "${PROJECT_BINARY_DIR}/hastenConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/HastenLibraries.cmake" "${PROJECT_SOURCE_DIR}/cmake/HastenTorch.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/HastenCuda.cmake"
  DESTINATION "${package_dir}")
