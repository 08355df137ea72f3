# Installs the build into a temporary folder, and configures, builds and runs a project that uses it there.
#   cmake -D BUILD=... -D SOURCE=... -D TORCH=... -D VERSION=... [-D FLAGS=...] -P run.cmake
# BUILD and SOURCE are the project's folders, TORCH is LibTorch's, FLAGS are the consumer's compiler flags.
execute_process(COMMAND mktemp -d -t hasten-install-XXXXXX OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  message("${output}")
  if(NOT status EQUAL 0)
    file(REMOVE_RECURSE "${folder}")
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "[install test] failed with ${status}: ${command}")
  endif()
endfunction()

run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${folder}/prefix")
file(COPY "${SOURCE}/tests/install/CMakeLists.txt" "${SOURCE}/tests/install/main.cpp" DESTINATION "${folder}/project")
# Neither the source tree nor the build folder may be what makes it work: both paths would show in the package.
file(GLOB_RECURSE package "${folder}/prefix/*.cmake")
foreach(file IN LISTS package)
  file(STRINGS "${file}" lines)
  string(REPLACE "${TORCH}" "" lines "${lines}")
  foreach(inside IN ITEMS "${BUILD}" "${SOURCE}")
    string(FIND "${lines}" "${inside}" position)
    if(NOT position EQUAL -1)
      file(REMOVE_RECURSE "${folder}")
      message(FATAL_ERROR "[install test] ${file} names ${inside}, which only this machine has.")
    endif()
  endforeach()
endforeach()

run("${CMAKE_COMMAND}" -G Ninja -S "${folder}/project" -B "${folder}/build"
    "-DCMAKE_PREFIX_PATH=${folder}/prefix" "-DCMAKE_CXX_FLAGS=${FLAGS} -DEXPECTED_VERSION='\"${VERSION}\"'")
run("${CMAKE_COMMAND}" --build "${folder}/build")
run("${folder}/build/consumer")
if(EXISTS "${folder}/prefix/bin/hasten")
  run("${folder}/prefix/bin/hasten" --help)
endif()
file(REMOVE_RECURSE "${folder}")
