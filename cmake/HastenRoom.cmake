# hasten_room(NAME [NATIVE]) adds every source of src/NAME to one of the two libraries:
#   hasten_native   rooms free of LibTorch, all that the command-line program links
#   hasten          the rest; it links hasten_native and LibTorch, and is what users link as hasten::hasten
# Linking hasten_flags or a header-only library of the sources stays out of the installed package: BUILD_INTERFACE.
# A source under src/NAME/cuda/ is built only with HASTEN_CUDA, one under src/NAME/no_cuda/ only without.
add_library(hasten_native STATIC)
add_library(hasten STATIC)
add_library(hasten::native ALIAS hasten_native)
add_library(hasten::hasten ALIAS hasten)
foreach(library IN ITEMS hasten_native hasten)
  target_include_directories(${library} PUBLIC
    $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_include_directories(${library} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  target_compile_features(${library} PUBLIC cxx_std_20)
  target_link_libraries(${library} PRIVATE $<BUILD_INTERFACE:hasten_flags>)
endforeach()
target_compile_definitions(hasten_native PRIVATE HASTEN_VERSION="${PROJECT_VERSION}")
target_link_libraries(hasten_native
  PUBLIC Threads::Threads
  PRIVATE ZLIB::ZLIB JPEG::JPEG PNG::PNG hasten::hdf5 hasten::utf8proc yaml-cpp::yaml-cpp
          $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
target_include_directories(hasten_native SYSTEM PRIVATE ${HASTEN_PROTOZERO_INCLUDE})
target_link_libraries(hasten PUBLIC hasten_native hasten::torch)
# Gloo's headers alone: its code is inside LibTorch, and a second copy must not be linked.
target_include_directories(hasten SYSTEM PRIVATE ${HASTEN_GLOO_INCLUDE})
target_link_libraries(hasten PRIVATE $<BUILD_INTERFACE:nlohmann_json::nlohmann_json> ${CMAKE_DL_LIBS})

function(hasten_room name)
  cmake_parse_arguments(room "NATIVE" "" "" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}"
       "${CMAKE_CURRENT_SOURCE_DIR}/src/${name}/*.cpp")
  if(HASTEN_CUDA)
    list(FILTER sources EXCLUDE REGEX "/no_cuda/")
  else()
    list(FILTER sources EXCLUDE REGEX "/cuda/")
  endif()
  if(room_NATIVE)
    target_sources(hasten_native PRIVATE ${sources})
  else()
    target_sources(hasten PRIVATE ${sources})
  endif()
endfunction()
