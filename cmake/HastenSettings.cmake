# Settings that hold for every target of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON) # an installed program finds the LibTorch it was linked with

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(HASTEN_CCACHE ccache)
if(HASTEN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${HASTEN_CCACHE})
endif()
find_program(HASTEN_MOLD mold)
if(HASTEN_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# The flags of the project's own code; a user of the installed package does not inherit them.
add_library(hasten_flags INTERFACE)
target_compile_options(hasten_flags INTERFACE -Wall -Wextra -Wno-unknown-pragmas)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(hasten_flags INTERFACE -Wno-restrict) # g++ 12 warns of std::string's own operator+
endif()
if(HASTEN_WARNINGS_AS_ERRORS)
  target_compile_options(hasten_flags INTERFACE -Werror)
endif()
# RecordFunction::inputs() asserts in code compiled without NDEBUG against a release LibTorch.
target_compile_definitions(hasten_flags INTERFACE NDEBUG)

if(HASTEN_SANITIZE)
  add_compile_options(-fsanitize=${HASTEN_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${HASTEN_SANITIZE})
endif()
