# Finds LibTorch and makes the target hasten::torch. Installed with the package, which finds it in the same way.
#
# The places, in this order: Torch_DIR or CMAKE_PREFIX_PATH; what this build folder found before; the active Python's
# torch; the checkout's .venv, which `make` fills. The installed package sets two variables:
#   HASTEN_TORCH_REQUIRED  the only version that serves, since the library was compiled against its headers
#   HASTEN_TORCH_BUILT     where it was then, the last place to look
#
# LibTorch's own package file is not used: with a CUDA wheel it stops where the machine's toolkit lacks cuBLAS, though
# the wheel carries all that is needed to link.

# hasten_torch_version(OUT ROOT): the version of the LibTorch in a folder; empty when there is none.
function(hasten_torch_version out root)
  set(${out} "" PARENT_SCOPE)
  set(header "${root}/include/torch/headeronly/version.h")
  if(EXISTS "${header}" AND EXISTS "${root}/lib/libtorch_cpu.so")
    file(STRINGS "${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX REPLACE "[^0-9;]" "" numbers "${lines}")
    list(JOIN numbers "." version)
    set(${out} "${version}" PARENT_SCOPE)
  endif()
endfunction()

# hasten_torch_serves(OUT VERSION): whether a version can be used.
function(hasten_torch_serves out version)
  set(${out} OFF PARENT_SCOPE)
  if(HASTEN_TORCH_REQUIRED)
    if(version VERSION_EQUAL HASTEN_TORCH_REQUIRED)
      set(${out} ON PARENT_SCOPE)
    endif()
  elseif(version VERSION_GREATER_EQUAL 2.13)
    set(${out} ON PARENT_SCOPE)
  endif()
endfunction()

# hasten_explicit_torch_roots(OUT): the folders that the caller named.
function(hasten_explicit_torch_roots out)
  set(roots "")
  foreach(dir IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
    if(dir)
      cmake_path(SET root NORMALIZE "${dir}/../../..")
      list(APPEND roots "${root}")
    endif()
  endforeach()
  cmake_path(CONVERT "$ENV{CMAKE_PREFIX_PATH}" TO_CMAKE_PATH_LIST prefixes)
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH prefixes)
    list(APPEND roots "${prefix}" "${prefix}/torch")
  endforeach()
  set(${out} "${roots}" PARENT_SCOPE)
endfunction()

# hasten_python_torch_roots(OUT): the torch of the active Python and of the checkout's own.
function(hasten_python_torch_roots out)
  set(roots "")
  find_program(hasten_active_python NAMES python3 python NO_CACHE)
  foreach(interpreter IN ITEMS "${hasten_active_python}" "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../.venv/bin/python")
    if(EXISTS "${interpreter}")
      execute_process(
        COMMAND "${interpreter}" -c
                "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
        OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      if(found)
        list(APPEND roots "${found}")
      endif()
    endif()
  endforeach()
  set(${out} "${roots}" PARENT_SCOPE)
endfunction()

function(hasten_find_torch)
  set(seen "")
  hasten_explicit_torch_roots(explicit)
  hasten_python_torch_roots(found)
  foreach(root IN LISTS explicit HASTEN_TORCH_ROOT found HASTEN_TORCH_BUILT)
    hasten_torch_version(version "${root}")
    hasten_torch_serves(serves "${version}")
    if(serves)
      set(HASTEN_TORCH_ROOT "${root}" CACHE PATH "The folder of LibTorch that is used" FORCE)
      set(HASTEN_TORCH_VERSION "${version}" PARENT_SCOPE)
      return()
    elseif(version AND root IN_LIST explicit)
      # Nobody who names a LibTorch wants another one in silence.
      message(FATAL_ERROR "[cmake] LibTorch ${version} at ${root}, which CMAKE_PREFIX_PATH or Torch_DIR names, does "
                          "not serve. ${needed}")
    elseif(version)
      list(APPEND seen "${version} at ${root}")
    endif()
  endforeach()
  list(JOIN seen ", " seen)
  if(NOT seen)
    set(seen "none")
  endif()
  message(FATAL_ERROR "[cmake] LibTorch was not found. ${needed} Seen: ${seen}. ${remedy}")
endfunction()

if(HASTEN_TORCH_REQUIRED)
  set(needed "This hasten was compiled for LibTorch ${HASTEN_TORCH_REQUIRED} exactly.")
  set(remedy "Set CMAKE_PREFIX_PATH to its folder, or build hasten again with the LibTorch you have.")
else()
  set(needed "hasten needs LibTorch 2.13 or newer.")
  set(remedy "Run `make setup` in the checkout, which installs one into .venv, or set CMAKE_PREFIX_PATH to its folder.")
endif()
hasten_find_torch()
unset(needed)
unset(remedy)
message(STATUS "LibTorch ${HASTEN_TORCH_VERSION}: ${HASTEN_TORCH_ROOT}")

add_library(hasten::torch INTERFACE IMPORTED)
target_include_directories(hasten::torch INTERFACE
  "${HASTEN_TORCH_ROOT}/include" "${HASTEN_TORCH_ROOT}/include/torch/csrc/api/include")
target_compile_definitions(hasten::torch INTERFACE USE_DISTRIBUTED USE_C10D USE_C10D_GLOO)
target_link_libraries(hasten::torch INTERFACE
  "${HASTEN_TORCH_ROOT}/lib/libtorch_cpu.so" "${HASTEN_TORCH_ROOT}/lib/libc10.so")
if(HASTEN_CUDA)
  include("${CMAKE_CURRENT_LIST_DIR}/HastenCuda.cmake")
endif()
