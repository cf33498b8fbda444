# Third-party libraries, and which room links which (the table at the end). All come from the system:
# nothing is fetched at configure time.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(GTest REQUIRED)

# segue_find_header(<target> <header>): an interface target for a library used as headers only.
function(segue_find_header target header)
  find_path(${target}_INCLUDE_DIR ${header} REQUIRED)
  mark_as_advanced(${target}_INCLUDE_DIR)
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE ${${target}_INCLUDE_DIR})
endfunction()
segue_find_header(segue_xxhash xxhash.h)  # the code defines XXH_INLINE_ALL: no library is linked
segue_find_header(segue_tomlplusplus toml++/toml.h)
target_compile_definitions(segue_tomlplusplus INTERFACE TOML_HEADER_ONLY=1)

if(SEGUE_PORTABLE)
  set(segue_fmt fmt::fmt-header-only)
else()
  set(segue_fmt fmt::fmt)
endif()

set(segue_openmp "")
if(SEGUE_THREADS STREQUAL "openmp")
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  set(segue_openmp OpenMP::OpenMP_CXX)
endif()

# oneDNN by library and header: Debian's CMake configuration of it asks for OpenCL.
add_library(segue_onednn INTERFACE)
set(SEGUE_ONEDNN_SUMMARY "no oneDNN")
if(SEGUE_ONEDNN)  # AUTO or ON
  find_library(SEGUE_DNNL_LIBRARY dnnl)
  find_path(SEGUE_DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.h)
  mark_as_advanced(SEGUE_DNNL_LIBRARY SEGUE_DNNL_INCLUDE_DIR)
  if(SEGUE_DNNL_LIBRARY AND SEGUE_DNNL_INCLUDE_DIR)
    target_link_libraries(segue_onednn INTERFACE ${SEGUE_DNNL_LIBRARY})
    target_include_directories(segue_onednn SYSTEM INTERFACE ${SEGUE_DNNL_INCLUDE_DIR})
    set(SEGUE_ONEDNN_SUMMARY "oneDNN")
  elseif(NOT SEGUE_ONEDNN STREQUAL "AUTO")
    message(FATAL_ERROR "SEGUE_ONEDNN=${SEGUE_ONEDNN}, but libdnnl and oneapi/dnnl/dnnl.h were not found. "
      "Install libdnnl-dev, or configure with -DSEGUE_ONEDNN=OFF.")
  endif()
endif()
if(SEGUE_ONEDNN_SUMMARY STREQUAL "oneDNN")
  target_compile_definitions(segue_onednn INTERFACE SEGUE_HAS_ONEDNN=1)
else()
  target_compile_definitions(segue_onednn INTERFACE SEGUE_HAS_ONEDNN=0)
endif()

set(segue_cudart "")
set(segue_cublaslt "")
if(SEGUE_HAS_CUDA)
  find_package(CUDAToolkit REQUIRED)
  set(segue_cudart CUDA::cudart_static)
  # Some toolkits come without the math libraries; --as-needed drops this one while nothing calls it.
  if(TARGET CUDA::cublasLt)
    set(segue_cublaslt CUDA::cublasLt)
  endif()
endif()

# SEGUE_PUBLIC_<room>: also for every room above. SEGUE_PRIVATE_<room>: for that room and its tests.
set(SEGUE_PUBLIC_base ${segue_fmt} Threads::Threads ${segue_openmp})
set(SEGUE_PRIVATE_base segue_tomlplusplus nlohmann_json::nlohmann_json segue_xxhash)
set(SEGUE_PUBLIC_tensor ${segue_cudart})
set(SEGUE_PRIVATE_ops segue_onednn ${segue_cublaslt})
set(SEGUE_PUBLIC_cli CLI11::CLI11)
