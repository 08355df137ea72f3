# Finds LibTorch and makes the target hasten_torch.
#
# The places, in this order: CMAKE_PREFIX_PATH or Torch_DIR; the active Python's torch; the checkout's .venv,
# which `make` fills. LibTorch's own package file is not used: with a CUDA wheel it stops where the machine's
# toolkit lacks cuBLAS, though the wheel carries all that is needed to link.
function(hasten_find_torch out)
  set(roots "")
  if(Torch_DIR)
    cmake_path(SET root NORMALIZE "${Torch_DIR}/../../..")
    list(APPEND roots "${root}")
  endif()
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
    list(APPEND roots "${prefix}" "${prefix}/torch")
  endforeach()
  find_program(HASTEN_PYTHON NAMES python3 python)
  foreach(python IN ITEMS "${HASTEN_PYTHON}" "${CMAKE_CURRENT_LIST_DIR}/../.venv/bin/python")
    if(EXISTS "${python}")
      execute_process(
        COMMAND "${python}" -c
                "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
        OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      if(found)
        list(APPEND roots "${found}")
      endif()
    endif()
  endforeach()
  foreach(root IN LISTS roots)
    if(EXISTS "${root}/include/ATen/ATen.h" AND EXISTS "${root}/lib/libtorch_cpu.so")
      set(${out} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR
    "[cmake] LibTorch was not found; looked in: ${roots}. "
    "Run `make` in the checkout, which installs it into .venv, or set CMAKE_PREFIX_PATH to a LibTorch 2.13 or newer.")
endfunction()

hasten_find_torch(HASTEN_TORCH_ROOT)
file(STRINGS "${HASTEN_TORCH_ROOT}/include/torch/headeronly/version.h" version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9;]" "" version_numbers "${version_lines}")
list(JOIN version_numbers "." HASTEN_TORCH_VERSION)
if(HASTEN_TORCH_VERSION VERSION_LESS 2.13)
  message(FATAL_ERROR "[cmake] LibTorch ${HASTEN_TORCH_VERSION} at ${HASTEN_TORCH_ROOT} is too old. hasten needs 2.13 or newer.")
endif()
message(STATUS "LibTorch ${HASTEN_TORCH_VERSION}: ${HASTEN_TORCH_ROOT}")

find_path(HASTEN_GLOO_INCLUDE gloo/algorithm.h REQUIRED)

add_library(hasten_torch INTERFACE)
target_include_directories(hasten_torch SYSTEM INTERFACE
  "${HASTEN_TORCH_ROOT}/include" "${HASTEN_TORCH_ROOT}/include/torch/csrc/api/include")
target_compile_definitions(hasten_torch INTERFACE USE_DISTRIBUTED USE_C10D USE_C10D_GLOO)
target_link_directories(hasten_torch INTERFACE "${HASTEN_TORCH_ROOT}/lib")
target_link_libraries(hasten_torch INTERFACE torch torch_cpu c10)
if(EXISTS "${HASTEN_TORCH_ROOT}/lib/libtorch_cuda.so")
  set(HASTEN_TORCH_HAS_CUDA ON)
else()
  set(HASTEN_TORCH_HAS_CUDA OFF)
endif()
if(HASTEN_CUDA)
  include(HastenCuda)
endif()
