# The shared libraries that the two archives link, for the build and for programs that use the installed package.
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(JPEG REQUIRED)
find_package(PNG REQUIRED)
find_package(yaml-cpp REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp) # before 0.8
  add_library(yaml-cpp::yaml-cpp INTERFACE IMPORTED)
  target_link_libraries(yaml-cpp::yaml-cpp INTERFACE yaml-cpp)
endif()

# hasten_library(NAME HEADER SUFFIXES... LIBRARIES names...): the target hasten::NAME for a library without a CMake package
# that serves programs without the language C.
function(hasten_library name header)
  cmake_parse_arguments(arg "" "" "SUFFIXES;LIBRARIES" ${ARGN})
  string(TOUPPER "HASTEN_${name}" prefix)
  find_path(${prefix}_INCLUDE ${header} PATH_SUFFIXES ${arg_SUFFIXES} REQUIRED)
  find_library(${prefix}_LIBRARY NAMES ${arg_LIBRARIES} REQUIRED)
  mark_as_advanced(${prefix}_INCLUDE ${prefix}_LIBRARY)
  if(NOT TARGET hasten::${name})
    add_library(hasten::${name} UNKNOWN IMPORTED)
    set_target_properties(hasten::${name} PROPERTIES
      IMPORTED_LOCATION "${${prefix}_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${${prefix}_INCLUDE}")
  endif()
endfunction()
hasten_library(hdf5 hdf5.h SUFFIXES hdf5/serial LIBRARIES hdf5_serial hdf5)
hasten_library(utf8proc utf8proc.h LIBRARIES utf8proc)
