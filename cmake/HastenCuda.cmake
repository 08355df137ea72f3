# Adds CUDA and NCCL to hasten::torch. Nothing here compiles device code: the host's compiler, the headers and
# LibTorch's libraries are all that is needed, so that it links on a machine without a GPU.
#
# The headers and libcudart come from the wheel's own packages (site-packages/nvidia/...), else from a toolkit. The
# wheel torch does not bring the folders crt/ and nv/ of them; the packages nvidia-cuda-crt and nvidia-cuda-cccl or a
# toolkit do.
if(NOT EXISTS "${HASTEN_TORCH_ROOT}/lib/libtorch_cuda.so")
  message(FATAL_ERROR "[cmake] HASTEN_CUDA is on, but LibTorch ${HASTEN_TORCH_VERSION} at ${HASTEN_TORCH_ROOT} has no "
                      "CUDA. Set CMAKE_PREFIX_PATH to one that has, or run `make cuda-check`, which installs it.")
endif()

file(GLOB hasten_cuda_roots "${HASTEN_TORCH_ROOT}/../nvidia/cu[0-9]*" "${HASTEN_TORCH_ROOT}/../nvidia/cuda_runtime"
                     "${HASTEN_TORCH_ROOT}/../nvidia/nccl")
find_program(hasten_nvcc nvcc HINTS ENV CUDA_HOME PATH_SUFFIXES bin NO_CACHE)
if(hasten_nvcc)
  file(REAL_PATH "${hasten_nvcc}" hasten_nvcc)
  cmake_path(SET hasten_toolkit NORMALIZE "${hasten_nvcc}/../..")
endif()
list(APPEND hasten_cuda_roots "$ENV{CUDA_HOME}" "${hasten_toolkit}" /usr/local/cuda)

find_path(HASTEN_CUDA_INCLUDE cuda_runtime_api.h HINTS ${hasten_cuda_roots} PATH_SUFFIXES include)
find_path(HASTEN_CUDA_CRT_INCLUDE crt/host_defines.h HINTS ${hasten_cuda_roots} PATH_SUFFIXES include)
find_path(HASTEN_CUDA_CCCL_INCLUDE nv/target HINTS ${hasten_cuda_roots} PATH_SUFFIXES include include/cccl)
find_path(HASTEN_NCCL_INCLUDE nccl.h HINTS ${hasten_cuda_roots} PATH_SUFFIXES include)
# All names are tried in one folder before the next, so that the wheel's library goes before a toolkit's.
find_library(HASTEN_CUDART NAMES cudart libcudart.so.13 libcudart.so.12 NAMES_PER_DIR
             HINTS ${hasten_cuda_roots} PATH_SUFFIXES lib lib64)
foreach(found IN ITEMS HASTEN_CUDA_INCLUDE HASTEN_CUDA_CRT_INCLUDE HASTEN_CUDA_CCCL_INCLUDE HASTEN_NCCL_INCLUDE
                       HASTEN_CUDART)
  if(NOT ${found})
    list(JOIN hasten_cuda_roots ", " looked)
    message(FATAL_ERROR "[cmake] ${found} was not found; looked in: ${looked}. "
                        "Install the CUDA toolkit and NCCL, or set CUDA_HOME or -D ${found}=...")
  endif()
endforeach()

target_include_directories(hasten::torch INTERFACE
  "${HASTEN_CUDA_INCLUDE}" "${HASTEN_CUDA_CRT_INCLUDE}" "${HASTEN_CUDA_CCCL_INCLUDE}" "${HASTEN_NCCL_INCLUDE}")
target_compile_definitions(hasten::torch INTERFACE USE_C10D_NCCL)
# libtorch_cuda registers its kernels as it is loaded, so that it must be linked even where no symbol of it is named.
target_link_libraries(hasten::torch INTERFACE
  "-Wl,--push-state,--no-as-needed,${HASTEN_TORCH_ROOT}/lib/libtorch_cuda.so,--pop-state"
  "${HASTEN_TORCH_ROOT}/lib/libc10_cuda.so" "${HASTEN_CUDART}")
